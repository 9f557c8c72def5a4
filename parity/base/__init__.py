"""Errors, files, progress, cores: what every other room stands on. Knows nothing of networks."""
