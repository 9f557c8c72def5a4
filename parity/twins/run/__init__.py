"""Trains both sides step by step beside the oracle, then again without recording."""
