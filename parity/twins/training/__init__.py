"""The training loop and all around it; not about parity at all."""
