"""Data parallelism over processes, each with some of the replicas.

Every process computes the gradients of its own replicas, as `parallel_executor.py` does with
all of them. Then `paddle.distributed` sums them over the processes, by gloo on CPUs and NCCL on
GPUs: all gradients at once, in one buffer, by a ring, in which each process sends 2 (P - 1) / P
of the buffer's bytes. Then every replica clips and updates its own copy of the weights.

Fluid could sum over processes inside of the engine on GPUs alone, so that the program is cut in
two here, before clipping.

Source: Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, for the ring.
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
from paddle_impl.strategies.parallel_executor import ParallelExecutorStrategy
from parity.base.errors import RankLost
from parity.twins.processes.gathering import (
    gather_parts,
    gather_state,
    state_of_local_rows,
)
from parity.twins.processes.interfaces import interface_of

_SUM = "coalesce_tensor"  # the last operation before the sum over the processes
_BUFFER, _REPORT = "gradients", "report"


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
        # The sums take the gradients' place in one buffer, and behind them is what every
        # process must know of all others: the losses, and whether one was asked to stop.
        block = paddle.static.default_main_program().global_block()
        dtype = gradients[0].dtype
        report = paddle.zeros([self.replicas + 1], dtype)
        report.stop_gradient = True

        def variable(name, shape):
            return block.create_var(name=name, shape=shape, dtype=dtype, persistable=True)

        sums = [variable(f"{each.name}/sum", each.shape) for each in gradients]
        block.append_op(
            type=_SUM,
            inputs={"Input": [*gradients, report]},
            outputs={
                "Output": [*sums, variable(_REPORT, report.shape)],
                "FusedOutput": variable(_BUFFER, [-1]),
            },
            attrs={
                "copy_data": True,
                "persist_output": True,
                "use_align": False,  # nothing is sent but the gradients
                "dtype": int(dtype),
            },
        )
        return sums

    def _executor(self, program, loss_name, share_variables_from=None):
        group = self.build.group
        if loss_name is None:
            return _OwnReplicas(
                group, program, None, self._places, self._scope, share_variables_from
            )
        loss = self._outputs.loss.name
        return _SummingExecutor(group, program, loss_name, loss, self._places, self._scope)

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
    """

    def __init__(self, group, program, objective, loss, places, scope):
        self._group, self._loss, self._places = group, loss, places
        kinds = [operation.type for operation in program.global_block().ops]
        cut = kinds.index(_SUM) + 1
        compute, update = split_program(program, cut)
        self._compute = ParallelExecutor(compute, objective, places, scope)
        self._update = ParallelExecutor(update, None, places, scope, self._compute)
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
        found = dict(zip(computed, self._compute.run(computed, feeds[own]), strict=True))
        report = np.zeros(len(feeds) + 1, found[self._loss][0].dtype)
        report[own], report[-1] = np.concatenate(found[self._loss]), self._group.stop_asked != 0
        *losses, stop = self._sum(report)
        found[self._loss] = [np.array(losses)]
        self._group.stop_agreed = bool(stop > 0)
        feeds = [{}] * len(self._places)
        found |= zip(updated, self._update.run(updated, feeds), strict=True)
        return [found[name] for name in fetch]

    def _sum(self, report):
        """Sum the gradients and the reports of all processes, and return the summed report."""
        scopes = self.local_scopes()
        first, *others = (scope.find_var(_BUFFER).get_tensor() for scope in scopes)
        summed = scopes[0].find_var(_REPORT).get_tensor()  # a part of the buffer
        summed.set(report, self._places[0])
        if self._group.size > 1:
            with dynamic_mode(self._places[0]):
                # in place: the new tensor has the memory of the other
                paddle.distributed.all_reduce(paddle.Tensor(first))
        for other, place in zip(others, self._places[1:], strict=True):
            other._copy_from(first, place)
        return np.array(summed)


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
