"""The bound of a sum admits every order of its terms, and no more than rounding."""

import threading

import numpy as np
import pytest
from oracle_side import header, random_inputs, recorded_steps, small_spec

from parity.compare.tensors import ONE_STEP
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES
from parity.twins.compare.run_comparison import RunComparison
from parity.twins.oracle import run_parallel as threads
from parity.twins.oracle.perturbation import (
    UNIT,
    RoundingNoise,
    perturbation,
    product,
    summed,
)
from parity.twins.oracle.rounding import Rounding
from parity.twins.oracle.run_parallel import run_parallel
from parity.twins.oracle.training import Share, run_network
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.step_arrays import StepInputs

ROWS, TIME = 40, 20  # as many tokens as 800

ORDERS = {
    "first to last": lambda terms: terms,
    "last to first": lambda terms: terms[::-1],
    "largest first": lambda terms: np.sort(terms)[::-1],
    "smallest first": np.sort,
}


def spec_of(dtype, seed):
    return small_spec(
        dtype=dtype, batch_size=ROWS, time=TIME, seed=seed, vocabulary_size=40, keep=1.0
    )


def judged(spec, steps):
    """Return the verdict of a side against itself, and the rounding of its last step."""
    comparison = RunComparison(
        {"paddle-2": header(spec, "paddle"), "jax-2": header(spec, "jax")}
    )
    for step, recorded in enumerate(steps):
        comparison.step(step, dict.fromkeys(comparison.sides, recorded))
    return comparison.verdict, comparison.rounding["paddle-2"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_loss_summed_term_by_term_is_no_mismatch(dtype, order, seed):
    spec = spec_of(dtype, seed)
    (recorded,) = recorded_steps(spec, 1)
    losses = []
    for terms in np.split(
        recorded["forward/token_loss"], np.cumsum(recorded["batch/sizes"])[:-1]
    ):
        terms = ORDERS[order](terms.swapaxes(0, 1).ravel())  # time varies slowest
        losses.append(np.cumsum(terms)[-1] * np.dtype(dtype).type(1 / (ROWS * TIME)))
    losses = np.array(losses)
    recorded |= {"loss/replicas": losses, "loss/global": losses.sum()}
    verdict, _ = judged(spec, [recorded])
    assert verdict.matches, verdict.mismatches
    used = verdict.pairs["paddle-2", ONE_STEP]["loss"].used
    assert used < 0.6, "there is a margin"


def test_the_bound_of_the_loss_is_still_that_of_rounding():
    """It grows with the root of the number of terms, not with their number."""
    spec = spec_of("float64", 1)
    (recorded,) = recorded_steps(spec, 1)
    _, rounding = judged(spec, [recorded])
    bound = ONE_STEP_TIMES["loss"] * rounding.scale("loss/global")
    units = bound / np.spacing(recorded["loss/global"])
    assert units < ROWS * TIME / 8
    wrong = recorded | {"loss/global": recorded["loss/global"] + 1.5 * bound}
    assert not judged(spec, [wrong])[0].matches


def test_a_gradient_may_lack_each_term_that_a_processor_flushes_to_zero():
    """Seen: 1.03 of the bound in TensorFlow, below 31 more layers."""
    spec = small_spec(dtype="float32", num_layers=22, keep=1.0)
    (recorded,) = recorded_steps(spec, 1)
    bias = recorded["gradient/lstm_0/bias"]
    assert 0 < np.abs(bias).max() < 1e-30
    bias -= recorded["batch/tokens"].size / 2 * np.finfo(np.float32).tiny
    verdict, _ = judged(spec, [recorded])
    assert verdict.matches, verdict.mismatches


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1), (0, 1, 2), None, -1])
def test_every_order_of_a_sum_gives_its_value(axis):
    array = np.random.default_rng(3).normal(size=(5, 4, 3)).astype(np.float32)
    exact = array.sum(axis=axis, dtype=np.float64, keepdims=True)
    seen = set()
    for run in range(4):
        with perturbation(RoundingNoise(run)):
            kept, dropped = summed(array, axis=axis, keepdims=True), summed(array, axis=axis)
        assert kept.dtype == np.float32
        assert kept.shape == exact.shape
        assert dropped.shape == array.sum(axis=axis).shape
        np.testing.assert_allclose(kept, exact, rtol=0, atol=1e-5)
        seen.add(kept.tobytes())
    assert len(seen) > 1, "the orders differ"
    assert np.array_equal(summed(array, axis=axis), array.sum(axis=axis)), (
        "without them, NumPy's"
    )


@pytest.mark.parametrize(("words", "width"), [(80, 4), (680, 4), (680, 64), (10_000, 16)])
def test_a_product_errs_like_one_that_is_summed_term_by_term(words, width):
    """Its rows are a gradient's: one word is near -1, the others are near 1 / words."""
    draw = np.random.default_rng(2)
    d_logits = (draw.uniform(0.5, 1.5, (45, words)) / words).astype(np.float32)
    d_logits[range(45), draw.integers(0, words, 45)] -= 1
    kernel = draw.uniform(-0.1, 0.1, (words, width)).astype(np.float32)
    exact = d_logits.astype(np.float64) @ kernel.astype(np.float64)

    def error(found):
        return np.sqrt(np.mean((found - exact) ** 2))

    in_sequence = error(np.cumsum(d_logits[:, :, None] * kernel, axis=1)[:, -1])
    with perturbation(RoundingNoise(0)):
        assert 0.8 < error(product(d_logits, kernel)) / in_sequence < 1.6
    assert np.array_equal(product(d_logits, kernel), d_logits @ kernel)


class SoftmaxOf:
    """The arithmetic of a side: the oracle's, but for the sum of each softmax over words."""

    def __init__(self, vocabulary_size, total):
        self.vocabulary_size, self.total = vocabulary_size, total

    def exponentials(self, array):
        return array

    def sum(self, array, axes):
        if array.ndim == 2 and array.shape[1] == self.vocabulary_size and axes == 1:
            return self.total(array)
        return np.asarray(array.sum(axis=axes, keepdims=True))

    def product(self, a, b):
        return a @ b


def confident_network(dtype, vocabulary_size, above, targets, seed):
    """Return what `share_used` reads; the first word's logits are so far above the rest."""
    spec = small_spec(
        dtype=dtype, vocabulary_size=vocabulary_size, keep=1.0, seed=seed, initial_scale=0.5
    )
    snapshot = initial_snapshot(spec)
    snapshot["weight/softmax/bias"] = snapshot["weight/softmax/bias"].copy()
    snapshot["weight/softmax/bias"][0] += above
    inputs = random_inputs(spec, [4] * len(targets), step=seed)
    batch = {**inputs.batch, "targets": targets}
    return spec, snapshot, StepInputs(batch, carry=False)


def step_and_rounding(spec, snapshot, inputs):
    """Return a function that takes a step in float64, and the rounding of that step."""
    state = zero_state(spec, inputs.rows)
    weights = {
        name.removeprefix("weight/"): np.asarray(array, np.float64)
        for name, array in snapshot.items()
        if name.startswith("weight/")
    }

    def step():
        wide = {name: np.asarray(array, np.float64) for name, array in state.items()}
        sizes, divisor = [inputs.rows], inputs.loss_divisor
        found = run_network(Share(spec, weights, inputs.batch, {}, wide, divisor, sizes))
        kinds = zip(("forward", "gradient"), found, strict=True)
        return {f"{kind}/{name}": a for kind, arrays in kinds for name, a in arrays.items()}

    recorded, exact = {"batch/sizes": np.array([inputs.rows])}, step()
    exact["loss/global"] = exact["forward/token_loss"].mean()
    return step, Rounding(spec, snapshot, state, inputs, recorded, exact)


def share_used(spec, snapshot, inputs, total):
    """Return the largest share of its bound that a side's error uses in any tensor.

    Args:
      total: sums the exponentials [tokens, vocabulary] of a softmax as the side does.
    """
    step, rounding = step_and_rounding(spec, snapshot, inputs)
    exact = rounding.exact
    with perturbation(SoftmaxOf(spec.model.vocabulary_size, total)):
        side = step()
    assert rounding.refine("gradient/softmax/bias")
    bounds = {name: ONE_STEP_TIMES[name.split("/")[0]] * rounding.scale(name) for name in side}
    return max(np.abs(side[name] - exact[name]).max() / bounds[name] for name in side)


def test_runs_that_overflow_do_not_widen_the_bound():
    """An infinite bound would let anything match."""
    huge = float(np.finfo(np.float32).max)
    network = confident_network("float32", 40, huge, np.zeros((3, 4), int), 1)
    _, rounding = step_and_rounding(*network)
    assert rounding.scale("forward/logits") < 1e-6 * huge


@pytest.mark.parametrize("above", [8, 12, 14, 17, 20, 25])
@pytest.mark.parametrize(
    ("dtype", "vocabulary_size"),
    [("float64", 700), ("float64", 10_000), ("float32", 700), ("float32", 10_000)],
)
def test_the_bound_fits_a_softmax_that_is_summed_from_the_first_word_on(
    dtype, vocabulary_size, above
):
    """However confident it is: from 0.28 to 1 - 1e-8 for the word that comes first."""
    targets = np.zeros((5, 4), np.int64)
    targets[0, 0] = 7

    def from_first(exponentials):
        terms = exponentials.astype(dtype)
        return np.cumsum(terms, axis=1)[:, -1:].astype(exponentials.dtype)

    network = confident_network(dtype, vocabulary_size, above, targets, seed=1)
    used = share_used(*network, from_first)
    assert used < 0.5, "there is a margin"
    if dtype == "float64":
        assert used > 0.05, "and not much more than that"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_confident_rows_that_err_alike_by_chance_are_no_mismatch(seed):
    """As seen in Paddle: the sums of four softmax rows over 694 words, all too large."""
    too_large = np.array([[29.2], [29.5], [21.4], [35.1]]) * UNIT["float64"]
    network = confident_network("float64", 694, 10, np.zeros((1, 4), np.int64), seed)
    used = share_used(
        *network, lambda terms: terms.sum(axis=1, keepdims=True) * (1 + too_large)
    )
    assert 0.3 < used < 0.8


# independent pieces of work on all cores at once


@pytest.mark.parametrize(
    ("cores", "calls", "running"),
    [(1, 12, 1), (1, 3, 1), (3, 12, 3), (16, 12, 4), (2, 3, 3), (2, 4, 2), (2, 7, 4)],
)
def test_results_come_in_order_and_no_core_is_idle_while_there_are_calls(
    cores, calls, running, monkeypatch
):
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    together, now, most = threading.Barrier(running), set(), []

    def meet(number):
        now.add(number)
        most.append(len(now))
        if number < calls - calls % running:
            together.wait(timeout=60)  # broken, if fewer are running
        now.discard(number)
        return number

    assert run_parallel([lambda k=k: meet(k) for k in range(calls)]) == list(range(calls))
    assert max(most) == running
    assert run_parallel([]) == []
