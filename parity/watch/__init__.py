"""Trainings that record themselves: what `parity.torch` and its like have in common."""
