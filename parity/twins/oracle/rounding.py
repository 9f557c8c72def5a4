"""What rounding alone does to a step: the bounds of single steps are multiples of it.

One number for all networks would be too wide for most and too narrow for some: a network with
large weights amplifies rounding a thousandfold through layers and time, and the gradients of
saturated gates nearly cancel, as do those of an attention's scores. So the rounding error is
measured for each step, on the oracle. It runs the step again in float32, with weights and state
moved randomly by up to one unit roundoff each, and the results of all exponentials moved as
much, or five times as much where a gate saturates: the frameworks' own tanh and sigmoid are up
to 7 unit roundoffs off there. A correct side of that precision lies as far from the exact step
as these runs do.

A sum has as many results as its terms have orders, and the bound must admit all of them. So the
runs take the oracle's own sums one term after another, from the end that errs more, in the
precision of the training; the longest of its products, over the words, likewise; and the loss
and the gradients, sums over all tokens, may err at least by what such a sum of so many terms
does.

The sum of a softmax matters most. Paddle's in float64 adds from the first word on, and where an
early word has nearly all of the probability, each later one is rounded to the last place of 1.
Seen: in four rows of 25, which expect <eos> among 694 words, the sum was 21 to 35 unit
roundoffs too large, all with one sign by chance; the root mean square is 15. These four sums
made 93 to 95 % of the errors in the step's worst gradients.

As long as it is small, the rounding error is proportional to the unit roundoff, so the same
runs scaled by 2^-29 give it for float64. (In float32 a saturated gate is exactly one, and 1 - f
would show no error at all that could be scaled; moving gates by a unit roundoff does.)

Above the gradients, a rung is a few operations on each element of the rung below. There the
rounding error is computed, element by element, from the unit roundoff and the magnitudes that
were summed.

Source: Parker 1997, "Monte Carlo arithmetic", UCLA CSD-970002: measuring rounding by running a
computation several times with random perturbations of the size of its roundoff.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial

import numpy as np

from parity.twins.oracle.optimizers import update_slots
from parity.twins.oracle.perturbation import UNIT, RoundingNoise, perturbation
from parity.twins.oracle.recent_rounding import RecentRounding, fall
from parity.twins.oracle.run_parallel import run_parallel
from parity.twins.oracle.training import (
    Share,
    recorded_weights,
    replica_losses,
    run_network,
)
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs

# A weight is rounded once when the update is subtracted, on average by half a unit roundoff.
# The update itself was rounded before: by SGD once, in a product; by Adam in two roots, two
# sums, two products and two quotients, together by at most 4.6 unit roundoffs over 60 steps of
# the embedded text and 30 random specs.
_OF_STEP = {"sgd": 1.0, "adam": 4.0}

_MEASURED = ("forward", "loss", "gradient")  # rungs measured by runs; others are computed

_FEW, _MANY = 2, 16  # the number of runs: at first, and where the verdict depends on it

Tensors = Mapping[str, np.ndarray]


class Rounding:
    """The rounding error of each tensor of one step of one side.

    Args:
      spec: what was trained.
      snapshot: weights and optimizer state before the step.
      state: recurrent state before the step.
      inputs: the inputs of the step.
      recorded: what the side recorded of the step.
      exact: what the oracle computes for it, each rung from the recorded rung below.
      alike: the rounding errors of another side that started the step from nearly the same
        weights; they serve as a first measurement.
      read: the weights that the gradient was computed with; None for those of the snapshot.
      recent: the rounding errors of the last steps; None to measure those of this one always.

    Attributes:
      exact: what the oracle computes for the step.
      runs: how many of them it took so far.
    """

    def __init__(
        self,
        spec: Spec,
        snapshot: Tensors,
        state: Tensors,
        inputs: StepInputs,
        recorded: Tensors,
        exact: Tensors,
        alike: "Rounding | None" = None,
        read: Tensors | None = None,
        recent: RecentRounding | None = None,
    ):
        self._recent = recent
        self._read = snapshot if read is None else read
        self._spec, self._snapshot, self._state = spec, snapshot, state
        self._inputs, self._recorded, self.exact = inputs, recorded, exact
        self._unit = UNIT[spec.training.dtype]
        self._measured: dict[str, float] = alike._measured if alike is not None else {}
        self._squares: dict[str, float] = {}  # tensor -> the sum of the runs' squared errors
        self.runs = 0

    def refine(self, name: str) -> bool:
        """Measure a tensor with more runs; return False if that would tell nothing new."""
        if self.runs == _MANY or name.split("/")[0] not in _MEASURED:
            return False
        self._measure(_MANY)
        return True

    def expected(self, name: str) -> tuple[float, float] | None:
        """Return a tensor's rounding error as the last steps let expect it, and at the least.

        It is None where they do not tell, and where this step has been measured.
        """
        falls = fall(name)
        if self._recent is None or self._measured or falls is None:
            return None
        if name == "loss/replicas":
            name = "loss/global"
        error = self._recent.error(name, self._largest(name))
        if error is None:
            return None
        own = self._of_sums(name)
        return max(own, error), max(own, error / falls)

    def scale(self, name: str) -> float | np.ndarray:
        """Return the size of a tensor's rounding error: one number, or one for each element."""
        kind, _, path = name.partition("/")
        if kind == "gradient_norm":
            return self._of_norm * float(self.exact[name])
        # a processor may flush smaller numbers to zero, each term of a sum by itself
        least = float(np.finfo(self._spec.training.dtype).tiny)
        if kind == "clipped_gradient":
            relative = self._unit + self._of_norm  # dividing, then multiplying by the scale
            return relative * np.abs(self.exact[name]) + least
        if kind == "optimizer":
            return self._unit * self._summed(path) + least
        if kind == "weight":
            after = self.exact[name]
            by = np.abs(after - np.asarray(self._snapshot[name], np.float64))
            rounded: np.ndarray = np.abs(after) + _OF_STEP[self._spec.training.optimizer] * by
            return self._unit / 2 * rounded + least
        if not self._measured:
            self._measure(_FEW)
            if self._recent is not None:
                found = {n: (self._error(n), self._largest(n)) for n in self._measured}
                self._recent.add(found)
        if name == "loss/replicas":
            name = "loss/global"
        if kind == "gradient":
            least *= self._terms(name)
        return max(self._of_sums(name), self._error(name)) + least

    def _error(self, name: str) -> float:
        """Return what was measured, in the precision of the training."""
        return self._measured[name] * self._unit / UNIT["float32"]

    def _largest(self, name: str) -> float:
        return float(np.abs(self.exact[name]).max(initial=0.0))

    def _of_sums(self, name: str) -> float:
        """Return the error that a tensor has at least, whatever the runs show."""
        own = self._unit * self._largest(name)
        if name.split("/")[0] in ("loss", "gradient"):
            own *= 1 + self._of_long_sum(name)
        return own

    @cached_property
    def _of_norm(self) -> float:
        """Return the relative error of the norm; the root halves that of the sum.

        Engines sum in blocks, or in as many sums as a register holds, and err less. A single
        float32 sum over 60,000 squares or more would err more: it no longer sees the small
        ones (seen: 760 unit roundoffs). That is not admitted, it loses a part of the norm.
        """
        count = sum(a.size for n, a in self.exact.items() if n.startswith("gradient/"))
        return self._unit * (1 + _in_sequence(count)) / 2

    def _of_long_sum(self, name: str) -> float:
        """Return the error of the loss, or of a gradient's largest element, in unit roundoffs.

        Both are sums over all real tokens, and engines differ in the order of the terms: they
        let rows or time steps vary faster, sum by replica, or add up step by step in a loop. A
        sum in pairs or in blocks, as in the runs, errs less than one taken term by term. Seen:
        10 unit roundoffs in a loss of 400 tokens, summed from the first to the last, where the
        runs showed 1; 10 in a bias of 12 numbers, where 16 runs showed 1.2 and 64 showed 2.
        """
        return _in_sequence(self._terms(name))

    def _terms(self, name: str) -> int:
        """Return how many terms the loss, or an element of a gradient, is the sum of.

        What turns queries and keys into scores has a term for each pair of a target token and a
        source token. The scale has more where it multiplies the keys, as in both sides: one for
        each unit of each source token. Seen there: 26 unit roundoffs.
        """
        network, batch = NETWORKS[self._spec.network], self._inputs.batch
        lengths = [batch[each] for each in network.lengths.values()]
        count = max(int(each.sum()) for each in lengths)
        if name == "gradient/attention/scale":
            count *= int(self._spec.model.hidden_size)
        elif name.startswith("gradient/attention/") and not name.endswith("/output_kernel"):
            count = int(np.prod(lengths, axis=0).sum())
        return count

    def _summed(self, path: str) -> np.ndarray:
        """Return the magnitudes that were summed for the optimizer's new state.

        A framework may compute beta m + (1 - beta) g as m + (1 - beta) (g - m): then all of m
        takes part in the sum, however little of it is left.
        """
        parameter, _, slot = path.rpartition("/")
        before: np.ndarray = np.abs(np.asarray(self._snapshot[f"optimizer/{path}"], np.float64))
        if slot not in ("m", "v"):
            return before
        gradient = np.abs(
            np.asarray(self._recorded[f"clipped_gradient/{parameter}"], np.float64)
        )
        slots = f"{parameter}/m", f"{parameter}/v", "beta1_power", "beta2_power"
        nothing = {
            f"optimizer/{n}": np.zeros_like(self._snapshot[f"optimizer/{n}"]) for n in slots
        }
        added = update_slots(self._spec, nothing, {parameter: gradient})[f"optimizer/{path}"]
        return before + added

    def _measure(self, runs: int) -> None:
        """Take the root mean square, over so many runs, of the largest error in each tensor."""
        more = range(self.runs, runs)
        for errors in run_parallel([partial(self._errors, run) for run in more]):
            for name, worst in errors.items():
                self._squares[name] = self._squares.get(name, 0.0) + worst**2
        self._measured = {n: float(np.sqrt(s / runs)) for n, s in self._squares.items()}
        self.runs = runs

    def _errors(self, run: int) -> dict[str, float]:
        """Return the largest error in each tensor of a run in float32."""
        errors = {}
        # what is too large becomes infinite, as on a side
        with np.errstate(over="ignore", invalid="ignore"):
            for name, array in self._perturbed(run).items():
                apart = np.abs(np.subtract(array, self.exact[name], dtype=np.float64))
                errors[name] = _worst(apart)
        return errors

    def _perturbed(self, run: int) -> dict[str, np.ndarray]:
        """Return activations, loss and gradients of a run in float32."""
        moves = RoundingNoise(run, self._spec.training.dtype)
        weights = moves.weights(self._read)
        state = {name: moves.any(array) for name, array in self._state.items()}
        masks = {n: np.asarray(mask, np.float32) for n, mask in self._inputs.masks.items()}
        with perturbation(moves):
            divisor, sizes = self._inputs.loss_divisor, self._recorded["batch/sizes"].tolist()
            given = self._inputs.batch, masks, state, divisor, sizes
            activations, gradients = run_network(Share(self._spec, weights, *given))
        found = {f"forward/{name}": array for name, array in activations.items()}
        found = {name: array for name, array in found.items() if name in self.exact}
        losses = replica_losses(activations["token_loss"], divisor, sizes)
        return found | {
            "loss/global": losses.sum(),
            **{f"gradient/{name}": array for name, array in gradients.items()},
        }


def rounding_of_scores(
    recorded: Tensors, dtype: str, score: Callable[[Tensors], np.ndarray]
) -> float:
    """Return the rounding error of the scores of given answers, in nats.

    Args:
      recorded: what the side recorded; it holds the weights that decoded the answers.
      dtype: the precision of the run.
      score: returns the scores for weights (parameter name -> array), in the weights'
        precision.
    """
    expected, squares = score(recorded_weights(recorded)), 0.0
    real = np.isfinite(expected)  # elsewhere there is no answer, or none that a search writes
    for run in range(_MANY):
        moves = RoundingNoise(run, dtype)
        with perturbation(moves):
            found = score(moves.weights(recorded))
        apart = np.abs(found[real] - expected[real])
        squares += _worst(apart) ** 2
    return float(np.sqrt(squares / _MANY)) * UNIT[dtype] / UNIT["float32"]


def _worst(errors: np.ndarray) -> float:
    """Return the largest finite error: within an infinite bound anything would match."""
    worst = float(errors.max(initial=0.0))
    if np.isfinite(worst):
        return worst
    return float(errors.max(initial=0.0, where=np.isfinite(errors)))


def _in_sequence(count: int) -> float:
    """Return the error of a sum that is taken one term after another, in unit roundoffs of it.

    Each partial sum is rounded. Of terms of about the same size, the k-th partial sum is k / n
    of the whole, and rounding errs by 1 / sqrt(3) of a unit roundoff on average (the root mean
    square): together sqrt(n) / 3.
    """
    return float(np.sqrt(count)) / 3
