"""Sums of gradients over processes, which begin while the backward pass goes on.

Large gradients go one by one, in the order in which the backward pass computes them, and small
ones together at last. An operation behind a large gradient tells a thread that it is computed,
which sums it over all processes by `paddle.distributed`, in place: by gloo on CPUs, by NCCL on
GPUs, in a ring. Of embedding tables only the rows go that any process has read in the step.

Source: Li et al. 2020, arXiv:2006.15704, section 3.2, for gradients that are sent during the
backward pass; Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, for the ring.
"""

import math
from queue import SimpleQueue
from threading import Event, Thread

import numpy as np
import paddle
from paddle.base import core
from paddle.base.dygraph import guard as dynamic_mode

from parity.twins.processes.touched_rows import mark_touched_rows, table_rows

PACKS = "coalesce_tensor"  # the operation that packs the last message, after all gradients
_LAST, _REPORT = "small_gradients", "report"
_ALONE = 2**20  # bytes from which a gradient is worth a message of its own


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
        self._tables = {name: gradients[name].name for name in table_rows(self._spec)}
        sums, small = {}, {}
        for name, gradient in reversed(gradients.items()):
            size = math.prod(gradient.shape) * core.size_of_dtype(gradient.dtype)
            if name in self._tables or size >= _ALONE:
                sums[name] = gradient
                gradient.persistable = True  # or it would be freed
                self._add_message(gradient.name)
            else:
                small[name] = gradient
        report = paddle.zeros([self._build.replicas + 1], gradient.dtype)
        report.stop_gradient = True
        return sums | self._pack(small | {_REPORT: report})

    def _pack(self, packed):
        """Let the last message have copies of variables; return what takes their place."""
        block = paddle.static.default_main_program().global_block()
        dtype = packed[_REPORT].dtype

        def variable(name, shape):
            return block.create_var(name=name, shape=shape, dtype=dtype, persistable=True)

        copies = {name: variable(f"{name}/sum", each.shape) for name, each in packed.items()}
        block.append_op(
            type=PACKS,
            inputs={"Input": list(packed.values())},
            outputs={"Output": list(copies.values()), "FusedOutput": variable(_LAST, [-1])},
            attrs={
                "copy_data": True,
                "persist_output": True,
                "use_align": False,  # nothing is sent but the gradients
                "dtype": int(dtype),
            },
        )
        self._computed[_LAST] = Event()
        return copies

    def _add_message(self, name):
        """Add the message that sends a variable, and an operation that says it is computed."""
        self._computed[name] = computed = Event()
        if self._build.device == "gpu":
            return  # the operation would run before the gradient is there

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
        if self._build.group.size > 1:
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
