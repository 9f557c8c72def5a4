"""A mistake in the forward pass changes the gradients as its own derivative does."""

import numpy as np
import pytest
from planted_step import Planted, specs

from parity.twins.compare.causes.suspects import suspects
from parity.twins.compare.causes.wrong_step import FORWARD, LOSS
from parity.twins.compare.oracle_tensors import as_float64
from parity.twins.oracle.training import Oracle
from parity.twins.spec.replaceable import replacing

# What these do has no derivative, or leaves it out on purpose.
WITHOUT = ("rounded to", "replica's loss reported")
BY = 1e-6


def loss_and_gradients(case, snapshot):
    oracle = Oracle(case.spec, snapshot)
    oracle.state = {name: as_float64(part) for name, part in case.state.items()}
    found = oracle.step(case.inputs, case.rate, case.sizes)
    return found["loss/replicas"].sum(), found


@pytest.mark.parametrize("spec", ["stream", "sentences", "general", "scaled, fed", "bahdanau"])
def test_gradients_are_those_of_central_differences(spec):
    case = Planted(specs()[spec]).case
    draw = np.random.default_rng(4)
    names = [name for name in case.snapshot if name.startswith("weight/")]
    moves = {name: draw.normal(size=case.snapshot[name].shape) for name in names}
    moved = {
        sign: dict(case.snapshot)
        | {name: case.snapshot[name] + sign * BY * moves[name] for name in names}
        for sign in (1, -1)
    }
    tried = 0
    for suspect in suspects(case):
        if suspect.starts not in (FORWARD, LOSS) or any(
            each in suspect.name for each in WITHOUT
        ):
            continue
        # the orders of gates are alike: exchanges of two are enough
        if "gates in the order" in suspect.name:
            continue
        change = suspect.solve(suspect.guesses[1]) if suspect.solve else suspect.ways[0]
        with replacing(change.replacements):
            _, found = loss_and_gradients(case, case.snapshot)
            above, below = (loss_and_gradients(case, moved[sign])[0] for sign in (1, -1))
        slope = sum(
            float(np.vdot(found[f"gradient/{name[7:]}"], moves[name])) for name in names
        )
        np.testing.assert_allclose(
            slope, (above - below) / (2 * BY), rtol=2e-6, atol=2e-8, err_msg=suspect.name
        )
        tried += 1
    assert tried > 40
