"""The catalogue of faults, in the order of computation."""

from parity.faults.catalogue import (
    answers,
    attention,
    batches,
    cells,
    checkpoints,
    clipping,
    decoding,
    evaluations,
    gradients,
    losses,
    micro_batches,
    stages,
    states,
    untraced,
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
    *clipping.FAULTS,
    *updates.FAULTS,
    *decoding.FAULTS,
    *evaluations.FAULTS,
    *answers.FAULTS,
    *checkpoints.FAULTS,
    *untraced.FAULTS,
    *micro_batches.FAULTS,
    *stages.FAULTS,
)
