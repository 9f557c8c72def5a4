"""What a trace of the two networks holds beyond any other."""
