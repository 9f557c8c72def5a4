"""How a network is trained: every number of the optimiser, its schedule and its precision."""

from dataclasses import dataclass

from parity.base.fields import check_fields, option


# fmt: off
@dataclass(frozen=True)
class TrainSpec:
    """How the network is trained; replicas are no part of it, since they change no result."""

    batch_size: int = option(20, "rows of the global batch at most, over all replicas", at_least=1)
    optimizer: str = option("sgd", "update rule", choices=("sgd", "adam"))
    learning_rate: float = option(1.0, "learning rate of the first epochs", above=0)
    decay: float = option(1.0, "factor on the learning rate for each epoch after --decay-after", above=0, at_most=1)
    decay_after: int = option(1, "epochs at the full learning rate", at_least=1)
    beta1: float = option(0.9, "Adam: decay of the first moment", at_least=0, below=1)
    beta2: float = option(0.999, "Adam: decay of the second moment", at_least=0, below=1)
    epsilon: float = option(1e-8, "Adam: added to the bias-corrected root, m' / (sqrt(v') + epsilon)", above=0)
    clip_norm: float = option(5.0, "largest global norm of the aggregated gradient", above=0)
    epochs: int = option(1, "passes over the training text", at_least=1)
    seed: int = option(1, "of initial weights, batch order and dropout masks", at_least=0)
    dtype: str = option("float32", "precision of weights and arithmetic", choices=("float32", "float64"))

    def __post_init__(self) -> None:
        check_fields(self)
# fmt: on


def learning_rate(training: TrainSpec, epoch: int) -> float:
    """Return the learning rate of an epoch (from 0).

    Source: the schedule of Zaremba et al. 2014: constant, then multiplied by `decay` an epoch.
    """
    return training.learning_rate * training.decay ** max(epoch + 1 - training.decay_after, 0)
