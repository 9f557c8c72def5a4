"""Turning a trained network into text: greedy search, beam search, sampling, and scores.

The searches run on the host, in NumPy, once for both frameworks and for the oracle; a model
only computes the next log probabilities. All live hypotheses of all sentences go through the
model in one step, and finished sentences leave it. A sentence's answer does not depend on the
other sentences of its batch, as far as the model's own arithmetic does not.
"""
