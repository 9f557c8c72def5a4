"""Fluid's ParallelExecutor: runs a program on replicas, on an engine that Paddle 2.6 still has.

Import this only after `load_engine`.
"""

from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import paddle
from paddle.base import core

from paddle_impl.loop_reads import read_in_place
from parity.base.machine import replicas_at_once

_FREED_FROM = "FLAGS_eager_delete_tensor_gb"  # at 0 all are freed, below it none


class ParallelExecutor:
    """Runs a program on several replicas with summed gradients.

    Args:
      program: the static program. Its parameters must already have their values in `scope`:
        the constructor copies them to the replicas.
      loss_name: the variable that the backward pass differentiates, without which the engine
        would insert no all-reduces; None only for a program without a backward pass, or one
        that runs on a single place.
      places: one place per replica.
      scope: the scope with the program's variables; replica 0 uses it directly.
      share_variables_from: an executor whose replicas' parameters this one shares.
      threads: how many operations run at a time; by default one per replica, or per core if
        there are fewer.

    Raises:
      ValueError: if `loss_name` is missing, or is not a variable of the program.

    Source: Fluid 1.x, python/paddle/fluid/parallel_executor.py, whose interface this class has.
    """

    def __init__(
        self,
        program: paddle.static.Program,
        loss_name: str | None,
        places: Sequence,
        scope,
        share_variables_from: "ParallelExecutor | None" = None,
        threads: int | None = None,
    ):
        block = program.global_block()
        trains = any(op.type.endswith("_grad") for op in block.ops)
        if trains and len(places) > 1 and not (loss_name and block.has_var(loss_name)):
            # Without it the engine would not sum the gradients, and replicas would drift apart.
            raise ValueError(f"loss_name is {loss_name!r}; allowed: a variable of the program")
        self._places = list(places)
        self._feed_names = {v.name for v in program.list_vars() if v.is_data}
        persistable = [
            v.name
            for v in program.list_vars()
            if v.persistable and v.type != core.VarDesc.VarType.RAW
        ]
        read_in_place(program)
        # The engine keeps a pointer to the graph: a temporary one would be freed.
        self._graph = core.Graph(program.desc)
        with _freed_outside_loops():
            self._engine = core.ParallelExecutor(
                [_engine_place(place) for place in places],
                persistable,
                loss_name or "",
                scope,
                share_variables_from.local_scopes() if share_variables_from else [],
                _execution_strategy(places, threads),
                _build_strategy(),
                self._graph,
            )

    @property
    def replicas(self) -> int:
        """Return the number of replicas."""
        return len(self._places)

    def local_scopes(self) -> list:
        """Return the scope of each replica."""
        return self._engine.local_scopes()

    def run(
        self, fetch: Sequence[str], feeds: Sequence[dict[str, np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """Run one step.

        Args:
          fetch: the names of the variables to return.
          feeds: for each replica, name -> array; the replicas' numbers of rows and padded
            lengths may differ.

        Returns:
          For each name, a list with the value on each replica.

        Raises:
          ValueError: if there is not one feed per replica, or a feed lacks a name or has an
            unknown one.
        """
        if len(feeds) != self.replicas:
            raise ValueError(f"{len(feeds)} feeds for {self.replicas} replicas")
        for feed in feeds:
            if set(feed) != self._feed_names:
                wrong = sorted(set(feed) ^ self._feed_names)
                raise ValueError(f"feeds do not fit the program's data: {wrong}")
        if self._feed_names:
            self._engine.feed_tensors_into_local_scopes(
                [
                    {name: _tensor(array, place) for name, array in feed.items()}
                    for feed, place in zip(feeds, self._places, strict=True)
                ]
            )
        fetched = self._engine.run(list(fetch), False)._move_to_list()
        return [[np.array(value) for value in values] for values in fetched]


@contextmanager
def _freed_outside_loops():
    """Let an engine that is made here free each tensor after its last reader, but not in loops.

    In a loop another thread frees them, and spins while it waits: a step of the encoder-decoder
    `proof` took 75 ms, then 65 without. The end of each time step frees them all anyway. The
    engine asks for the limit when it is made, and its loops when they are first run.
    """
    paddle.set_flags({_FREED_FROM: 0.0})
    try:
        yield
    finally:
        paddle.set_flags({_FREED_FROM: -1.0})


def _engine_place(place):
    wrapped = core.Place()
    wrapped.set_place(place)
    return wrapped


def _tensor(array: np.ndarray, place):
    tensor = core.LoDTensor()
    tensor.set(np.asarray(array, order="C"), place)
    return tensor


def _execution_strategy(places: Sequence, threads: int | None = None):
    strategy = core.ParallelExecutor.ExecutionStrategy()
    gpu = isinstance(places[0], core.CUDAPlace)
    strategy._use_device = core.DeviceType.CUDA if gpu else core.DeviceType.CPU
    # Each time step of a loop leaves a scope, and a new one takes longer the more there are. By
    # default they are kept for 100 steps; made anew in every step, large tensors are slower.
    strategy.num_iteration_per_drop_scope = 10
    at_once = threads or len(places)
    strategy.num_threads = replicas_at_once(at_once, "gpu" if gpu else "cpu")
    return strategy


def _build_strategy():
    strategy = core.ParallelExecutor.BuildStrategy()
    scale = core.ParallelExecutor.BuildStrategy.GradientScaleStrategy
    # The gradients are summed, not averaged: each loss is already a share of the global loss.
    strategy.gradient_scale_strategy = scale.One
    # The fused all-reduce fails if oneDNN has moved a gradient to other memory.
    strategy.fuse_all_reduce_ops = False
    return strategy


class SharedWeightsExecutor:
    """Runs a training program on replicas that share one copy of the weights.

    The update runs once, its operations at the same time, in place of once for each replica. It
    reads and writes the first replica's variables, whose memory all other replicas' have.

    Args:
      program: the static program of a whole step, whose update is last.
      loss_name: the variable that the backward pass differentiates.
      gradients: the names of the gradients that the update reads.
      places: one CPU place per replica.
      scope: the scope with the program's variables; replica 0 uses it directly.

    Source: Fluid 1.x, paddle/fluid/framework/parallel_executor.cc, BCastParamsToDevices, whose
    ReduceStrategy.Reduce shares memory like this on CPUs. It cannot clip by a global norm, as
    each gradient's sum is on another replica.
    """

    def __init__(self, program, loss_name: str, gradients, places: Sequence, scope):
        block = program.global_block()
        optimizes = int(core.op_proto_and_checker_maker.OpRole.Optimize)
        roles = [operation.attr("op_role") for operation in block.ops]
        first = next(index for index, role in enumerate(roles) if role & optimizes)
        compute, update = split_program(program, first)
        shared = [each.name for each in program.list_vars() if each.persistable]
        for each in (compute, update):
            for name in gradients:
                each.global_block().var(name).persistable = True  # or the other has none
        self._compute = ParallelExecutor(compute, loss_name, places, scope)
        for replica in self._compute.local_scopes()[1:]:
            for name in shared:
                first_copy = scope.find_var(name).get_tensor()
                if first_copy._is_initialized():  # else the program writes it before it is read
                    replica.find_var(name).get_tensor()._share_data_with(first_copy)
        operations = update.global_block().ops
        self._updated = {name for each in operations for name in each.output_arg_names}
        self._in_place = _scale_in_place(update.global_block(), gradients)
        self._update = ParallelExecutor(update, None, places[:1], scope, threads=len(places))

    def local_scopes(self) -> list:
        """Return the scope of each replica."""
        return self._compute.local_scopes()

    def run(
        self, fetch: Sequence[str], feeds: Sequence[dict[str, np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """Run one step; see `ParallelExecutor.run`. What the update computes has one value."""
        computed = [name for name in fetch if name not in self._updated]
        updated = [name for name in fetch if name in self._updated]
        found = dict(zip(computed, self._compute.run(computed, feeds), strict=True))
        held_by = [self._in_place.get(name, name) for name in updated]
        found |= zip(updated, self._update.run(held_by, [{}]), strict=True)
        return [found[name] for name in fetch]


def _scale_in_place(block, gradients) -> dict[str, str]:
    """Let an update write scaled gradients where the gradients were, not to other memory.

    The operating system would clear that at every step: scaling the 12 million numbers of
    `nmt-bahdanau` took 11 to 16 ms of 350 to 400, then 3.5.

    Returns:
      The name of what was a scaled gradient -> that of the gradient in its place.
    """
    in_place = {}
    for index, operation in enumerate(block.ops):
        if operation.type != "scale" or operation.input("X")[0] not in gradients:
            continue
        (gradient,), (scaled,) = operation.input("X"), operation.output("Out")
        later = block.ops[index + 1 :]
        if any(gradient in each.input_arg_names for each in later):
            continue
        operation._rename_output(scaled, gradient)
        for each in later:
            each._rename_input(scaled, gradient)
        in_place[scaled] = gradient
    return in_place


def split_program(program, at: int) -> tuple:
    """Return a program of the first operations of one, and a program of those after them.

    Args:
      program: a static program with a single block after the cut.
      at: the number of operations before the cut; none behind it reads what is fed.
    """
    before, after = program.clone(), program.clone()
    keep_operations(before.global_block(), range(at))
    keep_operations(after.global_block(), range(at, len(program.global_block().ops)))
    for variable in [each for each in after.list_vars() if each.is_data]:
        variable.block._remove_var(variable.name)
    return before, after


def keep_operations(block, kept) -> None:
    """Remove all operations of a block but those whose indices are kept."""
    for index in reversed(range(len(block.ops))):
        if index not in kept:
            block._remove_op(index, sync=False)
    block._sync_with_cpp()
