"""Turning a trained network into text: greedy search, beam search, sampling, and scores."""
