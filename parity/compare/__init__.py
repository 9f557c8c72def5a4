"""Recorded steps and the oracle -> a verdict, and what a mismatch looks like."""
