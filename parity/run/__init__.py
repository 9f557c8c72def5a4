"""`python -m parity run`: both sides trained step by step beside the oracle."""
