"""The laboratory: the two networks, how they are trained, proven, broken and timed."""
