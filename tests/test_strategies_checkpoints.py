"""Every strategy goes on from what any strategy saved, in either framework.

All of them compute the same training here, asynchronous ones with a single worker. What a
checkpoint holds decides how training goes on: so each strategy's checkpoint is loaded by one
strategy, and one strategy's checkpoint by each.
"""

import numpy as np
import pytest
from conftest import flags

from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import TrainSpec
from parity.twins.training.checkpoint import load_checkpoint
from parity.twins.training.loss_table import read_losses

SAVED, STEPS = 4, 7
GIVEN = {"dtype": "float64", "optimizer": "adam", "batching": "stream"}
TRAINING = TrainSpec(dtype=GIVEN["dtype"], optimizer=GIVEN["optimizer"])
# The others have tests like these of their own: tests/test_strategies_horovod.py, and for
# Paddle's parameter servers tests/test_strategies_parameter_server_paddle.py.
ALL = [
    (framework, entry.name)
    for framework in FRAMEWORKS
    for entry in FRAMEWORKS[framework].strategies
    if not entry.environment and entry.traits.can_train(TRAINING)
]
FIRST = ALL[0]


def strategy_flags(framework: str, strategy: str) -> dict:
    """Return flags of a strategy with which it computes what all others compute."""
    traits = FRAMEWORKS[framework].strategies.entry(strategy).traits
    if not traits.synchronous:
        return {"strategy": strategy, "replicas": 1, "schedule": "1"}
    if traits.devices == "layers":
        return {"strategy": strategy, "replicas": 2, "stages": 3, "micro_batches": 2}
    return {"strategy": strategy, "replicas": 3}


@pytest.fixture(scope="module")
def trained(frameworks, text, cache, tmp_path_factory):
    """Return a function that trains a strategy, once, and returns the folder of the run."""
    kept = {}

    def train(framework, strategy, steps, resume=None):
        key = framework, strategy, steps, resume
        if key not in kept:
            folder = tmp_path_factory.mktemp("run")
            given = GIVEN | strategy_flags(framework, strategy)
            given |= {"data": text, "cache": cache, "out": folder, "steps": steps}
            given |= {"resume": trained_before(*resume) if resume else None}
            status, _, errors = frameworks[framework].train(*flags(**given)).wait()
            assert status == 0, errors
            kept[key] = folder
        return kept[key]

    def trained_before(framework, strategy):
        return train(framework, strategy, SAVED)

    return train


@pytest.fixture(scope="module")
def unbroken(trained):
    """Return the losses and the weights of a training that was never interrupted."""
    return results(trained(*FIRST, STEPS))


def results(folder):
    """Return the losses by step, and the last weights and optimiser state."""
    losses = {row[0]: row[1] for row in read_losses(folder / "losses.csv")}
    (newest,) = folder.glob(f"checkpoints/*{STEPS:06d}*")
    return losses, load_checkpoint(newest).snapshot


def assert_goes_on(found, unbroken):
    losses, snapshot = found
    expected_losses, expected = unbroken
    for step in range(SAVED, STEPS):
        assert losses[step] == pytest.approx(expected_losses[step], rel=1e-11)
    assert snapshot.keys() == expected.keys()
    for name, array in expected.items():
        worst = np.abs(snapshot[name] - array).max()
        assert worst <= 1e-10 * max(np.abs(array).max(), 1e-30), name


@pytest.mark.parametrize("saver", ALL, ids=" ".join)
def test_what_a_strategy_saved_goes_on_in_another(saver, trained, unbroken):
    assert_goes_on(results(trained(*FIRST, STEPS, resume=saver)), unbroken)


@pytest.mark.parametrize("loader", ALL, ids=" ".join)
def test_a_strategy_goes_on_from_what_another_saved(loader, trained, unbroken):
    saver = ALL[-1] if loader[0] == FIRST[0] else FIRST
    assert_goes_on(results(trained(*loader, STEPS, resume=saver)), unbroken)
