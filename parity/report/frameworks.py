"""What reports call the frameworks, and the colours of their curves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """How reports show a framework.

    Attributes:
      title: its name as people write it.
      short: its name in the headings of narrow columns.
      colour: the colour of its curves in figures.
    """

    title: str
    short: str
    colour: str


LOOKS = {
    "paddle": Look("Paddle", "Paddle", "#2f7fe0"),
    "tensorflow": Look("TensorFlow", "TF", "#d9660a"),
    "pytorch": Look("PyTorch", "PyTorch", "#c8372d"),
    "keras": Look("Keras", "Keras", "#8a2be2"),
    "jax": Look("JAX", "JAX", "#2a9d6f"),
}


def title_of(framework: str) -> str:
    """Return a framework's name as people write it; one without an entry, as it is."""
    return LOOKS[framework].title if framework in LOOKS else framework


def short_of(framework: str) -> str:
    """Return a framework's name in the headings of narrow columns."""
    return LOOKS[framework].short if framework in LOOKS else framework
