"""Ways of running replicas, one module each."""
