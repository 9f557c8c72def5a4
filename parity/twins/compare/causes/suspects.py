"""All suspects, by subject."""

from collections.abc import Iterator

from parity.twins.compare.causes import (
    attention,
    averages,
    backward,
    cells,
    clipping,
    encoder,
    gates,
    inputs,
    losses,
    updates,
    weights,
    whole_updates,
)
from parity.twins.compare.causes.suspect import Suspect, WrongStep

_SUBJECTS = (
    inputs,
    weights,
    cells,
    encoder,
    attention,
    losses,
    backward,
    averages,
    clipping,
    updates,
    whole_updates,
    gates,  # the most
)


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield every suspect that a case may have, by subject."""
    for subject in _SUBJECTS:
        yield from subject.suspects(case)
