"""Fluid 0.x's ParallelDo: a block of a program that runs on several devices.

A program written for it reads the same here. Its block runs on the engine of
`parallel_executor.py`: the rows of the inputs are divided among the places, each place computes
the block on its own rows, and the gradients are summed before the update.

    places = get_places(2)
    pd = ParallelDo(places)
    with pd.do():
        x_, y_ = pd.read_input(x), pd.read_input(y)
        pd.write_output(network(x_, y_))
    cost = paddle.mean(pd())
    paddle.optimizer.SGD(0.1).minimize(cost)
    executor = Executor(places[0])
    executor.run(paddle.static.default_startup_program())
    executor.run(feed={"x": rows, "y": labels}, fetch_list=[cost])
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import paddle
from paddle.base import core

from paddle_impl.devices import replica_devices
from paddle_impl.executor import ParallelExecutor
from paddle_impl.strategies.parallel_executor import ParallelExecutorStrategy
from parity.base.machine import usable_cores

_ROLES = core.op_proto_and_checker_maker
_REDUCTIONS = {"reduce_sum": "sum", "reduce_mean": "mean", "mean": "mean"}


class ParallelDoStrategy(ParallelExecutorStrategy):
    """Builds the network inside the block of a ParallelDo, whose output is the loss."""

    def _network(self, builder, inputs):
        pd = ParallelDo(self._places)
        with pd.do():
            divided = {
                kind: {name: pd.read_input(each) for name, each in arrays.items()}
                for kind, arrays in inputs._asdict().items()
                if kind in ("batch", "state", "masks")
            }
            outputs = builder(self.spec.model, inputs._replace(**divided))
            pd.write_output(outputs.loss)
        loss = paddle.sum(pd())
        pd.reduced()
        return outputs, loss


def get_places(device_count: int | None = None, device_type: str | None = None) -> list:
    """Return the devices that a ParallelDo runs on.

    Args:
      device_count: the number of devices; without it every GPU, or one CPU place per core.
      device_type: "CPU" or "CUDA"; CPU by default.

    Raises:
      UsageError: if there are fewer GPUs than needed.
      ValueError: for an unknown device type.
    """
    kinds = {None: "cpu", "CPU": "cpu", "CUDA": "gpu"}
    if device_type not in kinds:
        raise ValueError(f"device_type is {device_type!r}; allowed: 'CPU', 'CUDA'")
    if not device_count:
        gpu = device_type == "CUDA" and core.is_compiled_with_cuda()
        device_count = core.get_cuda_device_count() if gpu else usable_cores()
    return replica_devices(kinds[device_type], device_count)


class ParallelDo:
    """A block of the default main program that runs on several places, each on its own rows.

    In Fluid what follows the block ran once, on the outputs of all places together. Here it
    runs on every place, and so an output may only be summed or averaged there; `reduced` checks
    it. Anything else belongs into the block.

    Args:
      places: the devices; see `get_places`.
      use_nccl: accepted as in Fluid; the engine itself chooses how it sums gradients.
      name: accepted as in Fluid, where it named the operation.

    Source: Fluid 0.12, python/paddle/fluid/layers/control_flow.py, whose interface this class
    has.
    """

    def __init__(self, places: Sequence, use_nccl: bool = False, name: str | None = None):
        del use_nccl, name
        self.places = list(places)
        self.inputs: list = []
        self.outputs: list = []
        self._program = None
        self._range: tuple[int, int] | None = None  # of the block's operations, when complete

    @contextmanager
    def do(self) -> Iterator[None]:
        """Build the block: what is added to the program in this context runs on every place.

        Raises:
          ValueError: if this ParallelDo or the program already has a block.
        """
        program = paddle.static.default_main_program()
        if self._program is not None or _parallel_do(program) is not None:
            raise ValueError("a program can have one ParallelDo, with one block")
        self._program, first = program, len(program.global_block().ops)
        yield
        self._range = first, len(program.global_block().ops)
        program._parallel_do = self  # a clone, such as one for testing, will not have it

    def read_input(self, var):
        """Return the part of a data variable that is computed on each place.

        Args:
          var: a variable of `paddle.static.data`, whose rows are to be divided.

        Raises:
          ValueError: outside the block, or if the variable is not fed.
        """
        self._check_inside("read_input")
        if not var.is_data:
            raise ValueError(f"read_input takes data, not {var.name!r}, which is computed")
        self.inputs.append(var)
        return var

    def write_output(self, var) -> None:
        """Hand a variable of the block to what follows the block.

        Raises:
          ValueError: outside the block.
        """
        self._check_inside("write_output")
        self.outputs.append(var)

    def __call__(self):
        """Return the block's output, or a list if there are several.

        Raises:
          ValueError: before the block is complete, or if it has no output.
        """
        if self._range is None:
            raise ValueError("the outputs of a ParallelDo exist only after its block")
        if not self.outputs:
            raise ValueError("the block of the ParallelDo wrote no output")
        return self.outputs[0] if len(self.outputs) == 1 else list(self.outputs)

    def reduced(self) -> dict[str, str]:
        """Return what is computed from the outputs after the block, and how.

        Returns:
          Name of the variable -> "sum" or "mean".

        Raises:
          ValueError: if anything else is computed from what differs between the places.
        """
        operations = self._program.global_block().ops
        first, last = self._range
        inside = {name for op in operations[first:last] for name in op.output_arg_names}
        divided = inside | {var.name for var in self.inputs}
        outputs, found = {var.name: var for var in self.outputs}, {}
        for op in operations[:first] + operations[last:]:
            role = op.attr(_ROLES.kOpRoleAttrName())
            if role & int(_ROLES.OpRole.Backward) or role & int(_ROLES.OpRole.Optimize):
                continue
            read = (divided | set(found)).intersection(op.input_arg_names)
            if not read:
                continue
            reduction, (name, *others) = _REDUCTIONS.get(op.type), sorted(read)
            if reduction is None or name not in outputs or others:
                raise ValueError(
                    f"{op.type} reads {name!r} outside the block of the ParallelDo; allowed: "
                    "the sum or mean of an output"
                )
            if reduction == "mean" and -1 in outputs[name].shape:
                raise ValueError(
                    f"the mean of {name!r}, {list(outputs[name].shape)}, is taken after the "
                    "block, but places may have different numbers of rows; allowed: its mean "
                    "inside the block, or its sum"
                )
            found |= dict.fromkeys(op.output_arg_names, reduction)
        return found

    def merge(self, name: str, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return one value of a variable, given its value on each place.

        Args:
          name: an output of the block, a sum or mean of one, or a variable that is equal on
            all places, such as a parameter or its gradient.
          values: the value on each place.
        """
        if name in {var.name for var in self.outputs}:
            return np.concatenate([np.atleast_1d(value) for value in values])
        combine = {"sum": np.sum, "mean": np.mean}.get(self.reduced().get(name, ""))
        return combine(values, axis=0) if combine else values[0]

    def _check_inside(self, method: str) -> None:
        if self._program is None or self._range is not None:
            raise ValueError(f"{method} is called outside the block of the ParallelDo")


class Executor:
    """Runs programs as Fluid's Executor does: one that has a ParallelDo runs on its places.

    Args:
      place: the device for programs without a ParallelDo.
    """

    def __init__(self, place=None):
        self._plain = paddle.static.Executor(place)
        self._engines: WeakKeyDictionary = WeakKeyDictionary()

    def run(self, program=None, feed=None, fetch_list=None, scope=None) -> list[np.ndarray]:
        """Run a program once.

        The parameters of a program with a ParallelDo are copied to the places on its first run.

        Args:
          program: the default main program if not given.
          feed: name -> array with the rows of all places. They are divided as in Fluid: evenly,
            and the last place also gets the rows that are left over. Arrays that the block
            does not read as inputs are fed to each place whole.
          fetch_list: variables or names of variables to return; see `ParallelDo.merge`.
          scope: the scope with the parameters; the global scope if not given.

        Raises:
          ValueError: if inputs have different numbers of rows, or fewer rows than places.
        """
        program = program or paddle.static.default_main_program()
        pd = _parallel_do(program)
        if pd is None:
            return self._plain.run(program, feed, fetch_list, scope=scope)
        if program not in self._engines:
            averages, loss_name = "mean" in pd.reduced().values(), _loss(program)
            whole = _averaging(program, len(pd.places)) if averages and loss_name else program
            scope = scope or paddle.static.global_scope()
            self._engines[program] = ParallelExecutor(whole, loss_name, pd.places, scope)
        names = [getattr(each, "name", each) for each in fetch_list or []]
        values = self._engines[program].run(names, _divided(feed or {}, pd))
        return [pd.merge(name, parts) for name, parts in zip(names, values, strict=True)]


def _parallel_do(program) -> ParallelDo | None:
    """Return the ParallelDo of a program, if it has one."""
    return getattr(program, "_parallel_do", None)


def _loss(program) -> str | None:
    """Return the name of the variable that a program's backward pass differentiates."""
    at = _start_of_backward(program)
    if at is None:
        return None
    return program.global_block().ops[at].output_arg_names[0].removesuffix("@GRAD")


def _start_of_backward(program) -> int | None:
    """Return the index of the operation that sets the gradient of the loss to one."""
    role = int(_ROLES.OpRole.Backward) | int(_ROLES.OpRole.Loss)
    for index, op in enumerate(program.global_block().ops):
        if op.attr(_ROLES.kOpRoleAttrName()) == role:
            return index
    return None


def _averaging(program, places: int):
    """Return a copy of a program whose gradients are divided by the number of places.

    The engine sums them. It could divide them itself, but by a float32.
    """
    copy = program.clone()
    block, at = copy.global_block(), _start_of_backward(copy)
    gradient = block.var(block.ops[at].output_arg_names[0])
    share = block.create_var(name=f"{gradient.name}/share", dtype=gradient.dtype)
    role = {_ROLES.kOpRoleAttrName(): _ROLES.OpRole.Backward}
    value = {"shape": list(gradient.shape), "dtype": int(gradient.dtype), "value": 1 / places}
    block._insert_op(
        at + 1,
        type="fill_constant",
        outputs={"Out": [share.name]},
        attrs=value | role | {"str_value": repr(1 / places)},  # `value` is a float32
    )
    block._insert_op(
        at + 2,
        type="elementwise_mul",
        inputs={"X": [gradient.name], "Y": [share.name]},
        outputs={"Out": [gradient.name]},
        attrs={"axis": -1} | role,
    )
    return copy


def _divided(feed: dict, pd: ParallelDo) -> list[dict[str, np.ndarray]]:
    """Return the feed of each place."""
    inputs, count = {var.name for var in pd.inputs}, len(pd.places)
    rows = {name: len(array) for name, array in feed.items() if name in inputs}
    if len(set(rows.values())) != 1 or min(rows.values()) < count:
        raise ValueError(f"rows of the inputs: {rows}; allowed: one number, at least {count}")
    share = next(iter(rows.values())) // count
    bounds = [(k * share, (k + 1) * share if k + 1 < count else None) for k in range(count)]
    return [
        {n: array[start:stop] if n in inputs else array for n, array in feed.items()}
        for start, stop in bounds
    ]
