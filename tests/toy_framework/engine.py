"""Loads the framework."""


def load_engine(threads: int, device: str = "cpu"):
    """Import NumPy."""
    import numpy

    return numpy


def versions() -> dict[str, str]:
    """Return the versions that a trace records."""
    return {"numpy": load_engine(1).__version__}
