"""A model of one's own, trained in two frameworks and compared: see parity/trace/TRACE.md."""
