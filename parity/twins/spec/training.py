"""How a network is trained: every number of the optimiser, its schedule and its precision."""

from dataclasses import dataclass

from parity.twins.spec.fields import check_fields, option


# fmt: off
@dataclass(frozen=True)
class TrainSpec:
    """How a network is trained; replicas are not part of it, because they change no result."""

    batch_size: int = option(20, "greatest number of rows in a global batch, which all replicas share", at_least=1)
    optimizer: str = option("sgd", "update rule", choices=("sgd", "adam"))
    learning_rate: float = option(1.0, "learning rate of the first --decay-after epochs", above=0)
    decay: float = option(1.0, "factor that multiplies the learning rate in each epoch after --decay-after", above=0, at_most=1)
    decay_after: int = option(1, "number of epochs with the full learning rate", at_least=1)
    beta1: float = option(0.9, "Adam: decay rate of the first moment", at_least=0, below=1)
    beta2: float = option(0.999, "Adam: decay rate of the second moment", at_least=0, below=1)
    epsilon: float = option(1e-8, "Adam: term added to the bias-corrected root, as in m' / (sqrt(v') + epsilon)", above=0)
    loss_per: str = option("token", "what the summed loss of a global batch is divided by, and with it the gradient: its real tokens, or its rows, as in Zaremba et al. 2014; losses are reported per token in any case", choices=("token", "row"))
    clip_norm: float = option(5.0, "largest global norm of the gradient summed over all replicas; a gradient with a larger norm is scaled down to it", above=0)
    epochs: int = option(1, "number of passes over the training text", at_least=1)
    patience: int = option(0, "stop after so many epochs in which the validation text showed no better weights; 0: never", at_least=0)
    seed: int = option(1, "random seed of the initial weights, the order of batches and the dropout masks", at_least=0)
    dtype: str = option("float32", "floating-point type of weights and arithmetic", choices=("float32", "float64"))

    def __post_init__(self) -> None:
        check_fields(self)
# fmt: on


def learning_rate(training: TrainSpec, epoch: int) -> float:
    """Return the learning rate of an epoch (from 0): constant at first, then decaying.

    Source: Zaremba et al. 2014, section 4.1.
    """
    return training.learning_rate * training.decay ** max(epoch + 1 - training.decay_after, 0)
