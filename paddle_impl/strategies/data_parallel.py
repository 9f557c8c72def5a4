"""Data parallelism over processes, each with some of the replicas.

Every process computes the gradients of its own replicas, as `parallel_executor.py` does with
all of them. `gradient_sums.py` sums them over the processes, as soon as some are computed. Then
every replica clips and updates its own copy of the weights.

Fluid could sum over processes inside of the engine on GPUs alone, so that the program is cut in
two here, before clipping.
"""

import os
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO

import numpy as np
import paddle
from paddle.base import core
from paddle.base.dygraph import guard as dynamic_mode

from paddle_impl.devices import replica_devices
from paddle_impl.executor import ParallelExecutor, split_program
from paddle_impl.strategies.gradient_sums import PACKS, GradientSums
from paddle_impl.strategies.parallel_executor import ParallelExecutorStrategy
from parity.base.errors import RankLost
from parity.twins.processes.gathering import (
    gather_parts,
    gather_state,
    state_of_local_rows,
)
from parity.twins.processes.interfaces import interface_of


class DataParallel(ParallelExecutorStrategy):
    """Runs a program on the replicas of this process; the processes sum the gradients."""

    _shares_weights = False  # each replica updates a copy of its own

    def _own_places(self, replicas):
        # on GPUs, the processes of a host share its GPUs in their order
        first = replicas * self.build.group.local_rank
        return replica_devices(self.build.device, first + replicas)[first:]

    def _build(self):
        _connect(self.build.group, self._places[0])
        super()._build()
        # gloo gives up after 30 s, and some processes may be slow to build
        self.build.group.barrier()

    def _summed(self, gradients):
        self._sums = GradientSums(self.spec, self.build)
        names = [parameter.name for parameter in self._parameters]
        sums = self._sums.append(dict(zip(names, gradients, strict=True)))
        return [sums[name] for name in names]

    def _executor(self, program, loss_name, share_variables_from=None):
        group = self.build.group
        if loss_name is None:
            return _OwnReplicas(
                group, program, None, self._places, self._scope, share_variables_from
            )
        loss = self._outputs.loss.name
        return _SummingExecutor(
            group, program, loss_name, loss, self._places, self._scope, self._sums
        )

    def step(self, inputs, state, learning_rate, record=False):
        result = super().step(inputs, state, learning_rate, record)
        if not record:
            return result
        whole = gather_state(self.build.group, result.state, self.replicas)
        return replace(result, tensors={}) if whole is None else replace(result, state=whole)

    def evaluate(self, inputs, state):
        result = super().evaluate(inputs, state)
        gathered = self.build.group.all_gather({"losses": result.losses})
        return replace(result, losses=np.concatenate([each["losses"] for each in gathered]))

    def _join_activations(self, inputs, activations):
        parts = gather_parts(self.build.group, activations)
        return {} if parts is None else super()._join_activations(inputs, parts)

    def _joined(self, inputs, names, values):
        parts = dict(zip(names, values, strict=False))
        return state_of_local_rows(self.build.group, parts, inputs.rows, self.replicas)


class _OwnReplicas(ParallelExecutor):
    """Runs a program without an update on this process's replicas, given the feeds of all."""

    def __init__(self, group, *arguments):
        super().__init__(*arguments)
        self._group = group

    def run(self, fetch, feeds):
        return super().run(fetch, feeds[self._group.own(len(feeds))])


class _SummingExecutor:
    """Runs a training program on this process's replicas, with gradients of all processes.

    Args:
      group: the processes of the training.
      program: the program of a whole step, as `DataParallel._summed` made it.
      objective: the variable that its backward pass differentiates.
      loss: the variable whose value on each replica all processes get to know.
      places: one place per replica of this process.
      scope: the scope with the program's variables; the first of the replicas uses it directly.
      sums: the GradientSums that `DataParallel._summed` added to the program.
    """

    def __init__(self, group, program, objective, loss, places, scope, sums):
        self._group, self._loss, self._places, self._sums = group, loss, places, sums
        kinds = [operation.type for operation in program.global_block().ops]
        cut = len(kinds) - kinds[::-1].index(PACKS)
        compute, update = split_program(program, cut)
        # with a thread more, a large gradient goes while those of the replicas compute others
        threads = len(places) + 1
        self._compute = ParallelExecutor(compute, objective, places, scope, threads=threads)
        self._update = ParallelExecutor(update, None, places, scope, self._compute)
        sums.start(self._compute.local_scopes(), places)
        # what only the update computes, or the sums that it reads
        self._updated = {
            name
            for operation in update.global_block().ops
            for name in [*operation.input_arg_names, *operation.output_arg_names]
        }

    def local_scopes(self):
        return self._compute.local_scopes()

    def run(self, fetch, feeds):
        """Run one step, as ParallelExecutor does, given the feeds of all processes' replicas.

        The loss is returned as one array, with the value on each replica of all processes.
        """
        own = self._group.own(len(feeds))
        computed = [self._loss, *(name for name in fetch if name not in self._updated)]
        updated = [name for name in fetch if name in self._updated]
        self._sums.begin(feeds[own])
        found = dict(zip(computed, self._compute.run(computed, feeds[own]), strict=True))
        report = np.zeros(len(feeds) + 1, found[self._loss][0].dtype)
        report[own], report[-1] = np.concatenate(found[self._loss]), self._group.stop_asked != 0
        *losses, stop = self._sums.finish(report)
        found[self._loss] = [np.array(losses)]
        self._group.stop_agreed = bool(stop > 0)
        feeds = [{}] * len(self._places)
        found |= zip(updated, self._update.run(updated, feeds), strict=True)
        return [found[name] for name in fetch]


def _connect(group, place):
    """Let the engine connect this process with the others, as its environment says."""
    if group.size == 1:
        return
    if isinstance(place, core.CUDAPlace):
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", "nccl")
        os.environ.setdefault("FLAGS_selected_gpus", str(place.get_device_id()))
    else:
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            # by itself gloo may listen on the loopback interface, where no other host is
            host = group.endpoints[group.rank].rsplit(":", 1)[0]
            os.environ["GLOO_SOCKET_IFNAME"] = interface_of(host)
    try:
        # it would list the flags that engine.py sets
        with dynamic_mode(place), redirect_stderr(StringIO()):
            paddle.distributed.init_parallel_env()
    except RuntimeError as error:  # a stranger may have come to a port in a rank's place
        told = str(error).strip().splitlines()[-1]
        raise RankLost(f"the engine could not connect the ranks: {told}") from error
