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
    initial,
    inputs,
    losses,
    micro_batches,
    updates,
    weights,
    whole_updates,
)
from parity.twins.compare.causes.suspect import Case, Suspect

_SUBJECTS = (
    initial,
    inputs,
    weights,
    cells,
    encoder,
    attention,
    losses,
    micro_batches,
    backward,
    averages,
    clipping,
    updates,
    whole_updates,
    gates,  # the most: all orders, in all weights and in some
)


def suspects(case: Case) -> Iterator[Suspect]:
    """Yield every suspect that a case may have, by subject."""
    for subject in _SUBJECTS:
        yield from subject.suspects(case)
