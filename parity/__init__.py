"""What "the same" means: specs, canonical parameters, the oracle, traces and their comparison."""
