"""What the oracle expects a side to record of a step."""

from collections.abc import Mapping

import numpy as np

from parity.twins.oracle.optimizers import clip_by_global_norm, update_slots, update_weights
from parity.twins.oracle.replay import RecordedUpdate, Replay
from parity.twins.oracle.training import Oracle, as_float64
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, learning_rate
from parity.twins.spec.step_arrays import StepInputs, dropout_masks

Tensors = Mapping[str, np.ndarray]


class OracleTensors:
    """Computes what a trace should hold of a step.

    Args:
      spec: what was trained.
      batches_per_epoch: the number of steps of an epoch, for the learning rate.
      names: the tensors of a step, in the order of computation.
    """

    def __init__(self, spec: Spec, batches_per_epoch: int, names: list[str]):
        self.spec, self.batches_per_epoch = spec, batches_per_epoch
        names = [name for name in names if name.startswith("gradient/")]
        self._parameters = [name.split("/", 1)[1] for name in names]

    def inputs(self, step: int, batch: Tensors) -> StepInputs:
        """Return the inputs of a step, from the recorded batch."""
        arrays = {name: batch[f"batch/{name}"] for name in NETWORKS[self.spec.network].batch}
        update, first_row = RecordedUpdate.of(batch), 0
        if update is not None:
            step, first_row = update.step, update.first_row
        masks = dropout_masks(self.spec, step, arrays, first_row)
        loss_per = self.spec.training.loss_per
        return StepInputs(arrays, bool(batch["batch/carry"]), masks, loss_per=loss_per)

    def rate(self, step: int, batch: Tensors) -> float:
        """Return the learning rate of a recorded step."""
        update = RecordedUpdate.of(batch)
        step = step if update is None else update.step
        return learning_rate(self.spec.training, step // self.batches_per_epoch)

    def step(
        self,
        oracle: Oracle | Replay,
        inputs: StepInputs,
        step: int,
        batch: Tensors,
    ) -> dict[str, np.ndarray]:
        """Let the oracle take a step, and return what a trace should hold of it.

        Args:
          batch: the recorded batch, for the sizes of the replicas and the order of updates.
        """
        rate = self.rate(step, batch)
        if isinstance(oracle, Replay):
            return self.with_batch(oracle.step(inputs, rate, batch), step, batch)
        sizes = [int(size) for size in batch["batch/sizes"]]
        return self.with_batch(oracle.step(inputs, rate, sizes), step, batch)

    def with_batch(
        self, expected: dict[str, np.ndarray], step: int, batch: Tensors
    ) -> dict[str, np.ndarray]:
        """Add the tensors of the batch, which no network computes."""
        read = ("batch/", "schedule/")
        expected |= {name: batch[name] for name in batch if name.startswith(read)}
        # the rate of the schedule, not the one that the side says it used
        return expected | {"batch/learning_rate": np.array(self.rate(step, batch))}

    def above_gradients(
        self, snapshot: Tensors, recorded: Tensors, rate: float
    ) -> dict[str, np.ndarray]:
        """Compute each rung above the gradients from what was recorded on the rung below it.

        Args:
          snapshot: weights and optimizer state before the step.
          recorded: what the side recorded of the step.
          rate: the learning rate.
        """
        table = self._parameters
        gradients = {name: as_float64(recorded[f"gradient/{name}"]) for name in table}
        clipped, norm = clip_by_global_norm(gradients, self.spec.training.clip_norm)
        expected = {f"clipped_gradient/{name}": clipped[name] for name in table}
        expected["gradient_norm"] = np.asarray(norm)
        before_step = {name: as_float64(array) for name, array in snapshot.items()}
        clipped = {name: as_float64(recorded[f"clipped_gradient/{name}"]) for name in table}
        slots = update_slots(self.spec, before_step, clipped)
        expected |= slots
        slots = {name: as_float64(recorded[name]) for name in slots}
        return expected | update_weights(self.spec, before_step, slots, clipped, rate)


def with_replica_losses(
    expected: Tensors, recorded: Tensors, inputs: StepInputs
) -> dict[str, np.ndarray]:
    """Sum the oracle's loss over the rows of each replica, split as the side split them."""
    rows = expected["forward/token_loss"].sum(axis=1, dtype=np.float64) / inputs.loss_divisor
    bounds = np.cumsum([0, *recorded["batch/sizes"][:-1]])
    return dict(expected) | {
        "batch/sizes": recorded["batch/sizes"],
        "loss/replicas": np.add.reduceat(rows, bounds),
    }
