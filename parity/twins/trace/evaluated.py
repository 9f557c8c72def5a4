"""What a trace records of the evaluation after its last step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs

SPLITS = ("valid", "test")  # in the order in which they are evaluated

# Of each split, in the order in which a mistake would show, after the arrays of its batches.
_BEFORE, _AFTER = ("rows", "carry", "tokens_per_batch"), ("losses", "perplexity")


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a network on some batches of a split.

    Attributes:
      inputs: the batches that have a real token, in the order in which they were evaluated; of
        several processes, rank 0 has all rows of them, and the others have none.
      tokens: the number of real tokens of each batch, int64 [batches].
      losses: the loss of each batch in nats per real token, float64 [batches].
      perplexity: exp(mean loss per real token), the mean taken over all of these batches.
    """

    inputs: Sequence[StepInputs]
    tokens: np.ndarray
    losses: np.ndarray
    perplexity: float


def evaluated_names(spec: Spec) -> list[str]:
    """Return the names of the tensors that record an evaluation, of both splits."""
    arrays = [f"batch/{name}" for name in NETWORKS[spec.network].batch]
    parts = (*arrays, *_BEFORE, *_AFTER)
    return [f"evaluate/{split}/{part}" for split in SPLITS for part in parts]


def evaluation_tensors(spec: Spec, split: str, found: Evaluation) -> dict[str, np.ndarray]:
    """Return what a trace records of the evaluation of one split: name -> array.

    The batches are padded with zeros to one shape, and stacked: [batches, ...].

    Args:
      spec: the network, its text and its training.
      split: "valid" or "test".
      found: its evaluation.
    """
    inputs = found.inputs
    stacked = {
        f"batch/{name}": _stacked([each.batch[name] for each in inputs], len(axes))
        for name, axes in NETWORKS[spec.network].batch.items()
    }
    values = {
        "rows": np.array([each.rows for each in inputs], np.int64),
        "carry": np.array([each.carry for each in inputs], bool),
        "tokens_per_batch": np.asarray(found.tokens, np.int64),
        "losses": np.asarray(found.losses, np.float64),
        "perplexity": np.array(found.perplexity, np.float64),
    }
    return {f"evaluate/{split}/{name}": array for name, array in (stacked | values).items()}


def recorded_evaluation(
    spec: Spec, split: str, tensors: Mapping[str, np.ndarray]
) -> Evaluation:
    """Return what `evaluation_tensors` recorded, the padding of its batches removed."""
    part = {
        name.removeprefix(f"evaluate/{split}/"): array
        for name, array in tensors.items()
        if name.startswith(f"evaluate/{split}/")
    }
    network = NETWORKS[spec.network]
    inputs = []
    for place, rows in enumerate(part["rows"].tolist()):
        arrays = {name: part[f"batch/{name}"][place][:rows] for name in network.batch}
        for name, axes in network.batch.items():
            lengths = network.lengths.get(str(axes[1])) if len(axes) > 1 else None
            if lengths is not None:
                arrays[name] = arrays[name][:, : int(arrays[lengths].max(initial=1))]
        inputs.append(StepInputs(arrays, bool(part["carry"][place])))
    return Evaluation(
        inputs, part["tokens_per_batch"], part["losses"], float(part["perplexity"])
    )


def _stacked(arrays: Sequence[np.ndarray], rank: int) -> np.ndarray:
    """Return arrays padded with zeros to one shape, as one array with an axis more."""
    sizes = zip(*(array.shape for array in arrays), strict=True)
    whole = np.zeros((len(arrays), *(list(map(max, sizes)) or [0] * rank)), np.int64)
    for place, array in enumerate(arrays):
        whole[place][tuple(slice(size) for size in array.shape)] = array
    return whole
