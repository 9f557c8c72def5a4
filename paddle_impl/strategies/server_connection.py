"""The engine's parameter servers, and what a worker asks them.

These are the servers of Paddle's fleet, driven as fleet's Python code drives them, but without
that code: its `DistributedStrategy` does not work with protobuf 7, and its workers would sum up
13 gradients before they send one.

A server keeps one vector of float32 values, a section of the vector of all servers. Each
parameter lies whole on one server. Behind the parameters each server has a *clock*: for every
worker one value, which each of its pushes raises by one. With the weights a worker so pulls the
number of pushes of every worker that they contain.
"""

import ctypes
import socket
import time
from dataclasses import dataclass
from math import prod

import numpy as np
import paddle
from google.protobuf import text_format
from paddle.base import core
from paddle.distributed.fleet.proto import the_one_ps_pb2 as messages

from parity.base.errors import RankLost
from parity.twins.spec.parameters import parameters

_TABLE = 0
_ANSWER_SECONDS = 15  # the engine lets no other thread of a worker run until a server answers
_READY_SECONDS = 60.0
_APPLIED_SECONDS = 20.0
_RETRY_SECONDS = 0.1
_POLL_SECONDS = 5e-4
# glog's own variable, which it reads from the environment only when it is loaded
_LOG_LEVEL, _FATAL = "_ZN3fLI17FLAGS_minloglevelE", 3
# fleet's own, and two more: send each push by itself, and look for one every millisecond
_FLAGS = (
    *("max_body_size=2000000000", "socket_max_unwritten_bytes=2048000000"),
    *("bthread_concurrency=9", "max_connection_pool_size=1950"),
    *("pserver_push_dense_merge_limit=0", "pserver_async_push_dense_interval_ms=1"),
    f"pserver_timeout_ms={_ANSWER_SECONDS * 1000}",
)


@dataclass(frozen=True)
class Layout:
    """Where each value lies in the vector that the servers share.

    Attributes:
      sections: for each server, variable -> shape, in the order of its values: parameters, the
        server's clock, and what fills the section up.
      values: the number of values of each section, which all servers have alike.
      workers: the number of workers.
    """

    sections: tuple[dict[str, tuple[int, ...]], ...]
    values: int
    workers: int

    @classmethod
    def of(cls, spec, servers: int, workers: int) -> "Layout":
        """Return the layout for a network: the largest parameter to the emptiest server.

        Args:
          spec: Spec.
          servers: the number of servers.
          workers: the number of workers.
        """
        sections: list[dict[str, tuple[int, ...]]] = [{} for _ in range(servers)]
        filled = [0] * servers
        for parameter in sorted(parameters(spec), key=lambda each: -prod(each.shape)):
            least = filled.index(min(filled))
            sections[least][parameter.name] = parameter.shape
            filled[least] += prod(parameter.shape)
        values = max(filled) + workers
        for server, section in enumerate(sections):
            section[clock_name(server)] = (workers,)
            rest = values - filled[server] - workers
            if rest:
                section[f"filling_{server}"] = (rest,)
        return cls(tuple(sections), values, workers)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return variable -> shape, in the order of the vector."""
        return {name: shape for section in self.sections for name, shape in section.items()}

    def description(self) -> str:
        """Return what the engine is told of its servers, as protobuf's text."""
        message = messages.PSParameter()
        of_server = message.server_param.downpour_server_param
        of_worker = message.worker_param.downpour_worker_param
        for table in (
            of_server.downpour_table_param.add(),
            of_worker.downpour_table_param.add(),
        ):
            table.table_id, table.table_class = _TABLE, "MemoryDenseTable"
            table.type, table.shard_num = messages.PS_DENSE_TABLE, 256
            table.accessor.accessor_class = "CommMergeAccessor"
            # the engine divides the vector into parts of this // servers + 1 values
            table.accessor.fea_dim = self.values * len(self.sections) - 1
            table.accessor.embedx_dim = 1
            common = table.common
            common.name, common.table_name = "sgd", "parameters"
            common.params.extend(["Param", "LearningRate"])
            common.dims.extend([self.values, 1])
            # A server's learning rate never changes: workers multiply by theirs.
            common.initializers.extend(["fill_constant&0.0", "fill_constant&1.0"])
            common.entry, common.sync = "none", False
            common.table_num, common.table_dim = table.accessor.fea_dim, 1
            common.trainer_num = self.workers
        service = of_server.service_param
        service.server_class, service.client_class = "BrpcPsServer", "BrpcPsClient"
        service.service_class, service.start_server_port = "BrpcPsService", 0
        service.server_thread_num = 12
        message.init_gflags = " ".join(f"-{flag}" for flag in _FLAGS)
        return text_format.MessageToString(message)


class Servers:
    """A worker's connection to the servers.

    Args:
      layout: where each value lies.
      group: the processes of the training.
    """

    def __init__(self, layout, group):
        _log_no_errors()
        self._layout, self._group = layout, group
        self._endpoints, self._pushed = group.served["ps"], 0
        self._names = list(layout.shapes)
        self._place = paddle.CPUPlace()
        self._engine = core.DistFleetWrapper()
        self._engine.init_worker(layout.description(), _hosts(self._endpoints), group.rank)
        self._executor = paddle.static.Executor(self._place)

    def prepare(self, scope):
        """Make the variables of a scope that `pull` writes beside the parameters."""
        for name, shape in self._layout.shapes.items():
            if scope.find_var(name) is None:
                scope.var(name).get_tensor().set(np.zeros(shape, np.float32), self._place)

    def set(self, scope):
        """Set all weights of the servers to those of a scope, once the servers have started."""
        for endpoint in self._endpoints:
            self._await_server(endpoint)
        self._engine.push_dense_params(scope, _TABLE, self._names)

    def pull(self, scope):
        """Copy all weights of the servers into a scope.

        Returns:
          The number of pushes that each server has applied of each worker, int64 [servers,
          workers].

        Raises:
          RankLost: if a server does not answer.
        """
        clocks = [
            scope.find_var(clock_name(server)).get_tensor()
            for server in range(len(self._endpoints))
        ]
        for clock in clocks:  # the engine returns in silence where a server does not answer
            clock.set(np.full(self._layout.workers, -1, np.float32), self._place)
        self._engine.pull_dense_params(scope, _TABLE, self._names)
        counts = np.array([np.array(clock) for clock in clocks]).astype(np.int64)
        if (counts < 0).any():
            self._group.await_verdict()  # it may be known who is gone
            silent = [self._endpoints[server] for server in np.where(counts < 0)[0][:1]]
            raise RankLost(f"the server at {silent[0]} does not answer")
        return counts

    def read(self, scope):
        """Copy all weights of the servers into a scope, while nobody pushes.

        Raises:
          RankLost: if a server does not answer.
          RuntimeError: if the servers have not applied the same pushes.
        """
        counts = self.pull(scope)
        own = counts[:, self._group.rank]
        if (counts != counts[0]).any() or own[0] != self._pushed:
            raise RuntimeError(
                f"the servers have applied {counts.tolist()} pushes of each worker, of which "
                f"rank {self._group.rank} has made {self._pushed}"
            )

    def push(self, program, scope):
        """Run a program that pushes, and wait until the servers have applied it, all of it.

        A server applies a push in several threads, so that its clock may show the push before
        the weights do. All values are compared with what they have to be; nobody else pushes.

        Args:
          program: what `push_program` returned.
          scope: the scope with the gradients; its copy of the weights is overwritten.

        Raises:
          RankLost: if a server does not answer.
          RuntimeError: if a server applies more than this push, or less.
        """
        self.read(scope)
        before = {name: _copied(scope, name) for name in self._names}
        self._executor.run(program, scope=scope)
        self._pushed += 1
        expected = {
            name: array - _copied(scope, _pushed_name(name)) for name, array in before.items()
        }
        deadline = time.monotonic() + _APPLIED_SECONDS
        while True:
            own = self.pull(scope)[:, self._group.rank]
            if all(_are_equal(_copied(scope, name), expected[name]) for name in self._names):
                return
            if (own > self._pushed).any() or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the servers have applied {own.tolist()} pushes of rank "
                    f"{self._group.rank}, which has made {self._pushed}"
                )
            time.sleep(_POLL_SECONDS)

    def push_program(self, gradients, learning_rate, scope):
        """Return the program that pushes a worker's gradient times the learning rate.

        Args:
          gradients: parameter -> variable of its gradient.
          learning_rate: the variable of the learning rate.
          scope: the scope to make the pushed variables in.
        """
        program = paddle.static.Program()
        block, pushed = program.global_block(), []

        def variable(name, shape):
            return block.create_var(
                name=name, shape=shape, dtype="float32", persistable=True, stop_gradient=True
            )

        rate = variable(learning_rate.name, learning_rate.shape)
        for name, shape in self._layout.shapes.items():
            pushed.append(variable(_pushed_name(name), shape))
            if name in gradients:
                block.append_op(
                    type="scale",
                    inputs={"X": variable(gradients[name].name, shape), "ScaleTensor": rate},
                    outputs={"Out": pushed[-1]},
                    attrs={"bias": 0.0, "bias_after_scale": True},
                )
            else:
                value = np.zeros(shape, np.float32)
                if name.startswith(_CLOCK):
                    value[self._group.rank] = -1  # which the server subtracts
                scope.var(pushed[-1].name).get_tensor().set(value, self._place)
        block.append_op(
            type="send",
            inputs={"X": pushed},
            outputs={"Out": []},
            attrs={"send_varnames": ["parameters"], "is_sparse": 0, "table_id": _TABLE},
        )
        return program

    def _await_server(self, endpoint):
        host, port = endpoint.rsplit(":", 1)
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise RankLost(
                        f"the server at {endpoint} is not to be reached within "
                        f"{_READY_SECONDS:.0f} s: {error.strerror or error}"
                    ) from None
                time.sleep(_RETRY_SECONDS)


def run_server(layout, endpoints, index):
    """Be a server, until the process is ended.

    Args:
      layout: where each value lies.
      endpoints: "host:port" of each server.
      index: the number of this server.
    """
    engine = core.DistFleetWrapper()
    programs = [paddle.static.Program().desc]
    engine.init_server(layout.description(), _hosts(endpoints), index, layout.workers, programs)
    host, port = endpoints[index].rsplit(":", 1)
    engine.run_server(host, int(port))


def clock_name(server: int) -> str:
    """Return the name of the variable that counts the pushes that a server has applied."""
    return f"{_CLOCK}{server}"


_CLOCK = "clock_"


def _pushed_name(name):
    return f"{name}/push"


def _copied(scope, name):
    return np.array(scope.find_var(name).get_tensor())


def _are_equal(first, second):
    """Return whether arrays are equal, but for numbers that some code takes as zero."""
    return np.array_equal(first, second) or np.allclose(
        first, second, rtol=0, atol=np.finfo(np.float32).tiny, equal_nan=True
    )


def _log_no_errors():
    """Keep the engine from logging each request that fails: this process names who is lost."""
    level = ctypes.c_int.in_dll(ctypes.CDLL(core.libpaddle.__file__), _LOG_LEVEL)
    level.value = _FATAL


def _hosts(endpoints):
    hosts = [endpoint.rsplit(":", 1) for endpoint in endpoints]
    return [
        core.PSHost(host, int(port), server).serialize_to_string()
        for server, (host, port) in enumerate(hosts)
    ]
