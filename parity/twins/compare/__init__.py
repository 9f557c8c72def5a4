"""The library's comparison, with the oracle as a third side that knows the truth."""
