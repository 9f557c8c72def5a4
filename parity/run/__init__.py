"""Training both sides step by step beside the oracle, and then untraced."""
