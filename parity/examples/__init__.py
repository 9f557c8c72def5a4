"""A model that is not ours, trained in two frameworks and compared: see parity/TRACE.md."""
