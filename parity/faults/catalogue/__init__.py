"""The catalogue of faults, in the order of computation."""

from parity.faults.catalogue import (
    attention,
    batches,
    cells,
    decoding,
    gradients,
    losses,
    states,
    updates,
    weights,
)

CATALOGUE = (
    *batches.FAULTS,
    *weights.FAULTS,
    *cells.FAULTS,
    *states.FAULTS,
    *attention.FAULTS,
    *losses.FAULTS,
    *gradients.FAULTS,
    *updates.FAULTS,
    *decoding.FAULTS,
)
