"""Sums of gradients over processes, which begin while the backward pass goes on.

The gradients go in a few messages, in the order in which the backward pass computes them. An
operation behind the last gradient of a message tells a thread, which sums the message over all
processes by `paddle.distributed`, in place: by gloo on CPUs, by NCCL on GPUs, in a ring. Of
embedding tables only the rows go that any process has read in the step.

Source: Li et al. 2020, arXiv:2006.15704, section 3.2, for buckets of gradients that are sent
during the backward pass; Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, for the ring.
"""

import math
from queue import SimpleQueue
from threading import Event, Thread

import numpy as np
import paddle
from paddle.base import core
from paddle.base.dygraph import guard as dynamic_mode

from parity.twins.processes.touched_rows import mark_touched_rows, table_rows

PACKS = "coalesce_tensor"  # the operation that packs a message; the last one ends the sums
_BUFFER, _LAST, _REPORT = "gradients", "gradients/last", "report"
_MESSAGE = 4 * 2**20  # bytes from which gradients are worth a message of their own


class GradientSums:
    """What sums the gradients of a training program, and of each step what all must know.

    That is its report, [replicas + 1], which goes with the last message.

    Args:
      spec: the network, its text and its training.
      build: Build.
    """

    def __init__(self, spec, build):
        self._spec, self._build = spec, build
        self._tables = {}  # canonical name of an embedding table -> the gradient's variable
        self._computed = {}  # the variable that a message sends -> whether it may go, in order
        self._scopes, self._places = [], []
        self._asked, self._done = SimpleQueue(), SimpleQueue()

    def append(self, gradients):
        """Add operations to the program that let the gradients go.

        Args:
          gradients: canonical name of each parameter -> its gradient, lower layers first.

        Returns:
          Canonical name -> the variable of the sum.
        """
        block = paddle.static.default_main_program().global_block()
        self._tables = {name: gradients[name].name for name in table_rows(self._spec)}
        dense = {name: each for name, each in gradients.items() if name not in self._tables}
        *early, last = _messages(dense)
        sums = {}
        for number, names in enumerate(early):
            packed = {name: dense[name] for name in names}
            sums |= self._pack(block, f"{_BUFFER}/{number}", packed)
        for name, gradient in self._tables.items():
            sums[name] = gradients[name]
            sums[name].persistable = True
            self._add_message(gradient)
        dtype = next(iter(gradients.values())).dtype
        report = paddle.zeros([self._build.replicas + 1], dtype)
        report.stop_gradient = True
        packed = {name: dense[name] for name in last} | {_REPORT: report}
        return sums | self._pack(block, _LAST, packed)

    def _pack(self, block, name, packed):
        """Let a message have copies of some variables; return those that take their place."""

        def variable(name, like, shape):
            return block.create_var(name=name, shape=shape, dtype=like.dtype, persistable=True)

        places = {key: variable(f"{key}/sum", each, each.shape) for key, each in packed.items()}
        first = next(iter(packed.values()))
        block.append_op(
            type=PACKS,
            inputs={"Input": list(packed.values())},
            outputs={
                "Output": list(places.values()),
                "FusedOutput": variable(name, first, [-1]),
            },
            attrs={
                "copy_data": True,
                "persist_output": True,
                "use_align": False,  # nothing is sent but the gradients
                "dtype": int(first.dtype),
            },
        )
        self._add_message(name)
        return places

    def _add_message(self, name):
        """Add the message that sends a variable, and an operation that says it is computed."""
        self._computed[name] = computed = Event()
        if name == _LAST or self._build.device == "gpu":
            return  # on a GPU the operation would run before the gradient is there

        def tell(tensor):
            if tensor._ptr() == self._tensor(name)._ptr():  # else it is another replica's
                computed.set()

        variable = paddle.static.default_main_program().global_block().var(name)
        paddle.static.py_func(tell, variable, None)

    def start(self, scopes, places):
        """Begin to serve steps of the replicas that have these scopes and places."""
        self._scopes, self._places = scopes, places
        if self._build.group.size > 1:
            # a daemon, as it would wait forever for a step that failed
            Thread(target=self._serve, name="gradient sums", daemon=True).start()

    def begin(self, feeds):
        """Let the sums of a step begin, given the feeds of this process's replicas."""
        for computed in self._computed.values():
            computed.clear()
        self._asked.put(mark_touched_rows(self._spec, feeds))

    def finish(self, report):
        """Send what is left of a step, and give the sums to all replicas of this process.

        Args:
          report: what this process tells the others, [replicas + 1].

        Returns:
          The sum of all reports, [replicas + 1].
        """
        summed = self._tensor(f"{_REPORT}/sum")  # a part of the last message
        summed.set(report, self._places[0])
        for computed in self._computed.values():
            computed.set()
        if self._build.group.size > 1:
            error = self._done.get()
            if error:
                raise error
        for scope, place in zip(self._scopes[1:], self._places[1:], strict=True):
            for name in self._computed:
                scope.find_var(name).get_tensor()._copy_from(self._tensor(name), place)
        return np.array(summed)

    def _tensor(self, name):
        return self._scopes[0].find_var(name).get_tensor()

    def _serve(self):
        with dynamic_mode(self._places[0]):
            while True:
                marks = self._asked.get()
                try:
                    self._sum(marks)
                except Exception as error:  # noqa: BLE001 - `finish` raises it
                    self._done.put(error)
                else:
                    self._done.put(None)

    def _sum(self, marks):
        rows = self._rows(marks) if self._tables else {}
        for name, computed in self._computed.items():
            computed.wait()
            whole = paddle.Tensor(self._tensor(name))  # in the same memory
            sent = paddle.gather(whole, rows[name]) if name in rows else whole
            paddle.distributed.all_reduce(sent)
            if name in rows:
                whole.scatter_(rows[name], sent)

    def _rows(self, marks):
        """Return each table's gradient -> the rows that any process has read, [rows]."""
        marks = paddle.to_tensor(marks)
        paddle.distributed.all_reduce(marks, paddle.distributed.ReduceOp.MAX)
        ends = np.cumsum(list(table_rows(self._spec).values()))
        of_tables = np.split(marks.numpy(), ends[:-1])
        return {
            gradient: paddle.to_tensor(np.flatnonzero(each))
            for gradient, each in zip(self._tables.values(), of_tables, strict=True)
        }


def _messages(gradients):
    """Return the names of the gradients of each message, in the order of computation.

    Args:
      gradients: canonical name -> variable, lower layers first.
    """
    messages, size = [[]], 0
    for name, gradient in reversed(gradients.items()):
        if size >= _MESSAGE:
            messages.append([])
            size = 0
        messages[-1].append(name)
        size += math.prod(gradient.shape) * core.size_of_dtype(gradient.dtype)
    return messages
