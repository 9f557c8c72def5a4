"""An asynchronous side in NumPy: the oracle trains by workers, with weights they have read."""

from dataclasses import replace

import numpy as np
from oracle_side import OracleStrategy, small_spec, text, train_with

from parity.twins.cli.options import TrainOptions
from parity.twins.oracle.optimizers import update_slots, update_weights
from parity.twins.oracle.training import Oracle
from parity.twins.spec.step_arrays import StepResult
from parity.twins.spec.strategies import StrategyEntry, StrategySettings, Traits

SPEC = small_spec()
PER_EPOCH = 4


class AsynchronousOracle(OracleStrategy):
    """Trains asynchronously with the oracle; may do something before a worker computes."""

    entry = StrategyEntry(
        "asynchronous", "", "NumPy, by workers", traits=Traits(synchronous=False)
    )

    def __init__(self, spec, build, before=None):
        super().__init__(spec, build)
        self.before, self.computed = before, 0
        self.own = [{}] * self.replicas
        self.clipped = [{}] * self.replicas

    def replica_distances(self):
        return {}

    def read(self, worker):
        self.own[worker] = dict(self.held)

    def compute(self, part, state, record=False):
        worker, inputs = part.worker, part.inputs
        if self.before:
            self.before(self, worker)
        self.computed += 1
        oracle = Oracle(self.spec, self.own[worker])
        oracle.state = {name: np.asarray(part, np.float64) for name, part in state.items()}
        found = oracle.step(inputs, 0.0, [inputs.rows])
        self.clipped[worker] = {
            name.split("/", 1)[1]: array
            for name, array in found.items()
            if name.startswith("clipped_gradient/")
        }
        kinds = ("forward/", "gradient/", "clipped_gradient/")
        tensors = {n: a for n, a in found.items() if n.startswith(kinds)} | {
            name.replace("weight/", "read/", 1): array
            for name, array in self.own[worker].items()
            if name.startswith("weight/")
        }
        return StepResult(
            found["loss/replicas"],
            {name: found[f"forward/{name}"] for name in state},
            float(found["gradient_norm"]),
            tensors if record else {},
        )

    def update(self, worker, learning_rate):
        clipped, before = self.clipped[worker], self.held
        slots = update_slots(self.spec, before, clipped)
        moved = update_weights(self.spec, before, slots, clipped, learning_rate)
        self.held = {name: (moved | slots)[name] for name in before}


def train(
    out,
    spec=SPEC,
    before=None,
    schedule="free",
    staleness=None,
    cls=None,
    per_epoch=PER_EPOCH,
    **options,
):
    """Run a training; return its strategy."""
    options = TrainOptions(out=out, **{"replicas": 2} | options)
    settings = StrategySettings(schedule=schedule, staleness=staleness)

    def make(spec, build):
        build = replace(build, settings=settings)
        return cls(spec, build) if cls else AsynchronousOracle(spec, build, before)

    trained, _ = train_with(make, spec, options, text(spec, per_epoch))
    return trained
