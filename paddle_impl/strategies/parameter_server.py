"""Asynchronous training with parameter servers: every process is a worker, or a server.

A worker pulls all weights from the servers, computes the clipped gradient of its own rows, and
pushes it; the servers subtract what is pushed. Rank 0 says who pulls and who pushes next; see
parity/twins/training/worker_processes.py. A push ends when all servers have applied it.

Source: Dean et al. 2012, Large scale distributed deep networks, section 4.1.
"""

from paddle_impl.executor import ParallelExecutor
from paddle_impl.strategies.asynchronous import Asynchronous, _Shared, _Worker
from paddle_impl.strategies.server_connection import Layout, Servers
from paddle_impl.strategies.serving import check_device
from parity.twins.training.strategy import definition


class ParameterServer(Asynchronous):
    """Runs one worker, whose weights are those of the servers when it last pulled them."""

    _shares_weights = True  # the servers have the only copy

    def __init__(self, spec, build, entry):
        check_device(build)
        super().__init__(spec, build, entry)

    def _executor(self, program, loss_name, share_variables_from=None):
        if loss_name is None:
            return _Evaluation(program, self._places[0], self._scope)
        group = self.build.group
        layout = Layout.of(self.spec, len(group.served["ps"]), group.size)
        self._servers = Servers(layout, group)
        self._servers.prepare(self._scope)
        kept = {
            parameter.name: clipped
            for parameter, clipped in zip(self._parameters, self._clipped, strict=True)
        }
        count = len(program.global_block().ops) - self._update_operations
        worker = _PullingWorker(
            self._servers,
            self._learning_rate,
            program,
            count,
            loss_name,
            kept,
            self._places[0],
            self._scope,
        )
        self._workers = {group.rank: worker}
        return _Shared(self._scope, 1)

    def sources(self):
        # not the update of the program, which does not run
        return super().sources() | {"weight": definition(Servers)}

    def load(self, snapshot):
        super().load(snapshot)
        if self.build.group.rank == 0:
            self._servers.set(self._scope)

    def snapshot(self):
        self._servers.read(self._scope)
        return super().snapshot()

    def evaluate(self, inputs, state):
        self._servers.read(self._scope)
        return super().evaluate(inputs, state)


class _PullingWorker(_Worker):
    """Runs this process's worker, whose own copy of the weights is pulled from the servers.

    Args:
      kept: parameter -> variable of its clipped gradient.
    """

    def __init__(self, servers, learning_rate, program, count, loss_name, kept, place, shared):
        names = [variable.name for variable in kept.values()]
        super().__init__(program, count, loss_name, list(kept), names, place, shared)
        self._servers = servers
        for name in kept:  # the engine writes only into memory that is there
            tensor = shared.find_var(name).get_tensor()
            self._own.find_var(name).get_tensor()._copy_from(tensor, place)
        servers.prepare(self._own)
        self._push = servers.push_program(kept, learning_rate, self._own)

    def read(self):
        """Copy the weights of the servers to the worker's scope."""
        self._servers.read(self._own)

    def update(self):
        """Push the gradient that was computed last, and wait until it is applied."""
        self._servers.push(self._push, self._own)


class _Evaluation:
    """Runs a program without an update on the rows of one replica after another."""

    def __init__(self, program, place, scope):
        self._engine = ParallelExecutor(program, None, [place], scope)

    def run(self, fetch, feeds):
        """Return for each name a list with the value on each replica."""
        found = [self._engine.run(fetch, [feed]) for feed in feeds]
        return [[value for (value,) in values] for values in zip(*found, strict=True)]
