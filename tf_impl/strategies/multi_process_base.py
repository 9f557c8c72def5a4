"""What the synchronous strategies of several processes have in common.

Every process computes the rows of its own replicas. A strategy decides how its engine connects
the processes, where the variables are, and how gradients are summed. With the gradients, the
engine sums the replicas' losses and the requests to stop, so that every process knows all of
them. What else the processes exchange goes through their ProcessGroup.
"""

from dataclasses import replace

import numpy as np
import tensorflow as tf

from parity.twins.processes.gathering import (
    gather_parts,
    gather_state,
    state_of_local_rows,
)
from parity.twins.spec.step_arrays import split_feeds
from tf_impl.strategies.towers import Towers

tf1 = tf.compat.v1


class SeveralProcesses:
    """A mixin for a subclass of `Synchronous`, which joins what all processes computed.

    The strategy's `_run_step` returns the losses of all replicas, those of other processes too,
    and behind them one element that is greater than zero if a process was asked to stop.
    """

    def step(self, inputs, state, learning_rate, record=False):
        group = self.build.group
        result = super().step(inputs, state, learning_rate, record)
        *losses, stops = result.losses
        group.stop_agreed = bool(stops > 0)
        state = self._own_state(result.state, inputs)
        if record:
            state = gather_state(group, state, self.replicas) or state
        return replace(result, losses=np.array(losses), state=state)

    def evaluate(self, inputs, state):
        result = super().evaluate(inputs, state)
        gathered = self.build.group.all_gather({"losses": result.losses})
        losses = np.concatenate([each["losses"] for each in gathered])
        return replace(result, losses=losses, state=self._own_state(result.state, inputs))

    def _own_state(self, state, inputs):
        parts = {name: [array] for name, array in state.items()}
        return state_of_local_rows(self.build.group, parts, inputs.rows, self.replicas)

    def _record(self, inputs, values):
        """Return the tensors of a trace on the first process, and none on the others."""
        group = self.build.group
        activations = gather_parts(group, values["activations"])
        if group.rank > 0:
            self.replica_distances()  # in which every process takes part
            return {}
        return super()._record(inputs, values | {"activations": activations})


class TowersOfProcesses(SeveralProcesses, Towers):
    """Builds a graph in every process, with the towers of its replicas."""

    def _build(self):
        # fed with 1 if this process was asked to stop
        self._stop = tf1.placeholder(self.spec.training.dtype, [1], "stop")
        super()._build()

    def _fill(self, placeholders, inputs, state):
        feeds = split_feeds(self.spec, inputs, state, self.replicas)[self._own]
        filled = {
            placeholders[name]: _joined([feed[name] for feed in feeds]) for name in feeds[0]
        }
        # zero on a replica without a real token, whose loss is zero by its lengths here
        filled[placeholders["scale"]] = max(feed["scale"] for feed in feeds)
        sizes = [len(feed["lengths"]) for feed in feeds]
        stop = [self.build.group.stop_asked != 0]
        return filled | {self._sizes: sizes, self._stop: stop}


def _joined(parts):
    """Return the rows of some replicas in one array, padded to the longest of them."""
    longest = np.max([part.shape[1:] for part in parts], axis=0, initial=0)
    padded = []
    for part in parts:
        missing = [most - size for most, size in zip(longest, part.shape[1:], strict=True)]
        padded.append(np.pad(part, [(0, 0), *((0, each) for each in missing)]))
    return np.concatenate(padded)
