"""Ways to change what the network is given, and what comes back from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import Arrays, Replacements, WrongStep
from parity.twins.oracle.layers import look_up
from parity.twins.oracle.training import replica_losses, run_network
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Axes
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import zero_padding

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Share:
    """What the network, or one replica of it, is given.

    Attributes:
      spec: what is trained.
      weights: parameter name -> array.
      batch: the arrays of the batch.
      masks: the dropout masks.
      state: the recurrent state before the batch.
      divisor: what the summed loss is divided by.
      replica: the number of the replica; 0 where there is one share for all.
      shares: the shares of all replicas before any was changed.
    """

    spec: Spec
    weights: Weights
    batch: Mapping[str, np.ndarray]
    masks: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray]
    divisor: float
    replica: int = 0
    shares: "tuple[Share, ...]" = ()

    def run(self, d_activations: Arrays | None = None) -> tuple[Arrays, Arrays]:
        """Run the network on it; return activations and gradients."""
        call: Callable[..., tuple[Arrays, Arrays]] = original(run_network)
        return call(
            self.spec,
            self.weights,
            self.batch,
            self.masks,
            self.state,
            d_activations,
            self.divisor,
            [len(self.batch["lengths"])],
        )


def given(change: Callable[[Share], Share]) -> Replacements:
    """Return replacements that change what the network is given."""

    @wraps(run_network)
    def run(
        spec: Any,
        weights: Any,
        batch: Any,
        masks: Any,
        state: Any,
        d: Any,
        divisor: Any,
        _: Any,
    ) -> tuple[Arrays, Arrays]:
        return change(Share(spec, weights, batch, masks, state, divisor)).run(d)

    return {run_network: run}


def returned(change: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]) -> Replacements:
    """Return replacements that change the activations and gradients of the network."""

    @wraps(run_network)
    def run(*arguments: Any) -> tuple[Arrays, Arrays]:
        return change(*original(run_network)(*arguments))

    return {run_network: run}


def seen_through(
    see: Callable[[dict[str, np.ndarray]], None], back: Callable[[Arrays], None]
) -> Replacements:
    """Return replacements in which the network sees other weights than there are.

    Args:
      see: changes a dictionary of the weights in place.
      back: changes the gradients with respect to those into the gradients of the weights.
    """

    @wraps(run_network)
    def run(spec: Any, weights: Weights, *rest: Any) -> tuple[Arrays, Arrays]:
        seen = dict(weights)
        see(seen)
        activations, gradients = original(run_network)(spec, seen, *rest)
        back(gradients)
        return activations, gradients

    return {run_network: run}


def one_weight(
    names: Sequence[str],
    see: Callable[[np.ndarray], np.ndarray],
    back: Callable[[np.ndarray], np.ndarray],
) -> Replacements:
    """Return replacements in which the network sees some weights changed.

    Args:
      names: the parameters.
      see, back: return each weight as it is seen, and its gradient.
    """

    def change(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], None]:
        return lambda arrays: arrays.update({name: function(arrays[name]) for name in names})

    return seen_through(change(see), change(back))


Combine = Callable[[list[Arrays]], Arrays]


def summed(gradients: list[Arrays]) -> Arrays:
    """Return the sum of the replicas' gradients."""
    return {name: sum(each[name] for each in gradients) for name in gradients[0]}  # type: ignore[misc]


def in_replicas(
    change: Callable[[Share], Share] = lambda share: share,
    combine: Combine = summed,
    parts: Sequence[int] | None = None,
) -> Replacements:
    """Return replacements in which each replica runs on its own rows, as the sides' do.

    A replica's arrays are cut to the longest of its rows, and what it records is zero past the
    end of each row.

    Args:
      change: changes what a replica is given.
      combine: returns the gradient, given those of all replicas.
      parts: the number of rows of each part to run by itself; those of the replicas if not
        given.
    """

    @wraps(run_network)
    def run(
        spec: Spec,
        weights: Any,
        batch: Any,
        masks: Any,
        state: Any,
        _: Any,
        divisor: Any,
        sizes: Any,
    ) -> tuple[Arrays, Arrays]:
        whole = Share(spec, weights, batch, masks, state, divisor)
        shares = split(whole, sizes if parts is None else parts)
        shares = [replace(share, shares=tuple(shares)) for share in shares]
        found = [change(share).run() for share in shares]
        return joined(spec, [a for a, _ in found], batch), combine([g for _, g in found])

    return {run_network: run, look_up: padding_looked_up}


@wraps(look_up)
def padding_looked_up(table: np.ndarray, tokens: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Look up padding as well, as the sides do; it matters where a mistake reads it."""
    found: np.ndarray = table[tokens]
    return found


def split(whole: Share, sizes: Sequence[int]) -> list[Share]:
    """Return the share of each replica that has rows, cut to the longest of its rows."""
    network = NETWORKS[whole.spec.network]
    mask_axes = network.masks(whole.spec.model)
    shares = []
    for replica, (start, stop) in enumerate(pairwise(np.cumsum([0, *sizes]))):
        if start == stop:
            continue
        longest = {
            axis: max(1, int(whole.batch[lengths][start:stop].max()))
            for axis, lengths in network.lengths.items()
        }

        def cut(array: np.ndarray, axes: Axes, rows: slice, most: Mapping[str, int]) -> Any:
            array = array[rows]
            if len(axes) == 1 or isinstance(axes[1], int):
                return array
            return array[:, : most[str(axes[1])]]

        rows = slice(int(start), int(stop))
        shares.append(
            replace(
                whole,
                batch={
                    n: cut(a, network.batch[n], rows, longest) for n, a in whole.batch.items()
                },
                masks={n: cut(a, mask_axes[n], rows, longest) for n, a in whole.masks.items()},
                state={n: a[rows] for n, a in whole.state.items()},
                replica=replica,
            )
        )
    return shares


def joined(spec: Spec, parts: Sequence[Arrays], batch: Mapping[str, np.ndarray]) -> Arrays:
    """Join the replicas' activations, each padded with zeros."""
    axes = NETWORKS[spec.network].activations(spec.model)
    found = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        shape = np.max([array.shape[1:] for array in arrays], axis=0)
        for place, axis in enumerate(axes[name][1:]):
            if str(axis) in NETWORKS[spec.network].lengths:
                of_batch = next(
                    batch[n].shape[1]
                    for n, its in NETWORKS[spec.network].batch.items()
                    if axis in its
                )
                shape[place] = of_batch
        padded = [
            np.pad(a, [(0, 0), *((0, m - s) for m, s in zip(shape, a.shape[1:], strict=True))])
            for a in arrays
        ]
        found[name] = zero_padding(spec, axes[name], np.concatenate(padded), batch)
    return found


def divided(case: WrongStep, divisors: Sequence[float]) -> Replacements:
    """Return replacements in which the loss of each replica is divided by a number of its own.

    Args:
      divisors: one for each replica of the case.
    """

    @wraps(replica_losses)
    def losses(token_loss: np.ndarray, _: float, sizes: Sequence[int]) -> np.ndarray:
        per_replica = original(replica_losses)(token_loss, token_loss.dtype.type(1), sizes)
        found: np.ndarray = per_replica / np.asarray(divisors, token_loss.dtype)
        return found

    if len(set(divisors)) == 1:
        run = given(lambda share: replace(share, divisor=divisors[0]))
    else:
        run = in_replicas(lambda share: replace(share, divisor=divisors[share.replica]))
    return {**run, replica_losses: losses}
