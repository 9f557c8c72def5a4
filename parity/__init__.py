"""What "the same" means: specs, parameters, the oracle, traces and their comparison."""
