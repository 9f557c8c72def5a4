"""What a run writes, how it is read again, and what may differ."""
