"""Text to NumPy batches, the same for every framework."""
