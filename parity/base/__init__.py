"""Errors, files, progress, cores: what all else stands on. Knows nothing of networks."""
