"""Records what an executor of Paddle computes of a static graph, by fetching it as well."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.optimizer_state import power_after, slots_of
from parity.align.weights import check_kept, read_weights
from parity.base.errors import UsageError
from parity.watch.modules import plain
from parity.watch.recording import Recording

# Bits of the attribute op_role.
_BACKWARD, _OPTIMIZE, _LOSS = 1, 2, 256
_SCOPE = "op_namescope"
_MAIN = ("Out", "Y", "Output")  # names of what an operation returns first
_LINEAR, _CONV = ("Linear", {"Y": "weight"}), ("Conv2D", {"Filter": "weight"})
_NORM = {"Scale": "weight", "Bias": "bias", "Mean": "_mean", "Variance": "_variance"}
# type of an operation that reads parameters -> the layer that it is, and what that calls them
_LAYERS: dict[str, tuple[str, Mapping[str, str]]] = {
    **dict.fromkeys(("mul", "matmul", "matmul_v2"), _LINEAR),
    **dict.fromkeys(("conv2d", "depthwise_conv2d"), _CONV),
    "lookup_table_v2": ("Embedding", {"W": "weight"}),
    "layer_norm": ("LayerNorm", _NORM),
    "batch_norm": ("BatchNorm", _NORM),
}


class Program:
    """A static graph, and a copy of it in which all that is recorded can be fetched.

    What is written over, as gradients are by clipping or a decay, is copied before that by an
    operation of its own.

    Args:
      program: the `paddle.static.Program`, into which an optimizer was built.

    Attributes:
      copy: what is run in the place of `program`.
      parameters, buffers: names of the variables that last, trained or not.
      modules: what the operations of the network are, for the header.
      tensors: (rung, name in the trace, name of the variable to fetch) of all that passes.

    Raises:
      UsageError: for a program that updates no parameter, or is of Paddle 3, whose operations
        name their inputs in another way.
    """

    def __init__(self, program: Any):
        import paddle

        if not paddle.__version__.startswith("2."):
            raise UsageError(
                f"a static graph of Paddle {paddle.__version__}; allowed: one of Paddle 2, or "
                "dygraph"
            )
        self.original, self.copy = program, program.clone()
        block = self.copy.global_block()
        updates = [each for each in block.ops if {"Param", "Grad"} <= {*each.input_names}]
        if not updates:
            raise UsageError(
                "the program updates no parameter; allowed: one after optimizer.minimize(loss)"
            )
        updated = {each.input("Param")[0]: each.input("Grad")[0] for each in updates}
        lasting = {each.name for each in program.list_vars() if each.persistable}
        self.modules = list(_modules(block, lasting))
        read = {name for each in self.modules for name in each["parameters"].values()}
        self.parameters, self.buffers = list(updated), sorted(read - updated.keys())
        self.tensors = [*_outputs(block), *_gradients(block, updated)]


def load(program: Any, file: str | Path, optimizer: Any = None) -> None:
    """Give the variables of a program, in the global scope, what `parity weights` wrote.

    Raises:
      UsageError: as `parity.torch.load` does.
    """
    import paddle

    known, block = Program(program), program.global_block()
    names = *known.parameters, *known.buffers
    shapes = {each: tuple(block.var(each).shape) for each in names}
    slots = None if optimizer is None else slots_of("paddle", type(optimizer).__name__)
    given = read_weights(file, shapes, set(known.buffers), slots)
    scope, place = paddle.static.global_scope(), paddle.framework._current_expected_place()

    def take(name: str, array: np.ndarray) -> None:
        tensor = _last_value(scope, name)
        tensor.set(array.astype(np.array(tensor).dtype), place)
        check_kept(file, name, array, np.array(tensor))

    for name, array in given.weights.items():
        take(name, array)
    if optimizer is None:
        return
    kept = optimizer._accumulators
    for (name, slot), array in given.state.items():
        take(kept[slot][name].name, array)
    for beta in ("beta1", "beta2"):
        for each in kept.get(f"{beta}_pow_acc", {}).values():
            dtype = np.array(_last_value(scope, each.name)).dtype
            power = power_after(given.steps, getattr(optimizer, f"_{beta}"), dtype)
            _last_value(scope, each.name).set(np.full(each.shape, power, dtype), place)


def _forward(block: Any) -> Iterator[Any]:
    """Yield the operations of the network and of its loss."""
    for op in list(block.ops):
        if not op.attr("op_role") & (_BACKWARD | _OPTIMIZE):
            yield op


def _returned(block: Any, op: Any) -> dict[str, str]:
    """Return variable -> its name in the trace, of what an operation hands on, the main first.

    A recurrent one returns what the layer does: a sequence, NAME/0, and states, NAME/1/0.
    """
    slots = sorted(op.output_names, key=lambda each: each not in _MAIN)
    names = [name for slot in slots for name in op.output(slot)]
    found = {name: name for name in names if _is_seen(block.vars.get(name))}
    if op.type == "rnn":
        states, main = op.output("State"), op.output("Out")[0]
        found[main] = f"{main}/0"
        paths = ["1/0", "1/1"] if len(states) > 1 else ["1"]
        found |= {name: f"{main}/{path}" for name, path in zip(states, paths, strict=True)}
    return found


def _is_seen(variable: Any) -> bool:
    """Return whether a variable holds numbers that have a gradient."""
    if variable is None or variable.persistable or variable.stop_gradient:
        return False
    return _is_dense(variable) and "float" in str(variable.dtype)


def _is_dense(variable: Any) -> bool:
    return str(variable.type).endswith("LOD_TENSOR") and 0 not in variable.shape


def _outputs(block: Any) -> Iterator[tuple[str, str, str]]:
    """Yield what the operations return, its gradients, and the loss."""
    written = Counter(name for op in _forward(block) for name in op.output_arg_names)
    calls: Counter[str] = Counter()
    for op in _forward(block):
        for variable, name in _returned(block, op).items():
            if op.attr("op_role") & _LOSS:
                yield "loss", "loss", variable
                continue
            number, seen = calls[name], variable
            calls[name] += 1
            if number + 1 < written[variable]:
                seen = _kept(block, variable, block.ops.index(op) + 1)
            yield "forward", f"{name}#{number}" if number else name, seen
            if number + 1 == written[variable] and f"{variable}@GRAD" in block.vars:
                yield "activation_gradient", name, f"{variable}@GRAD"


def _gradients(block: Any, updated: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each parameter's gradient, and what clipping makes of it."""
    ops = list(block.ops)
    first = next(i for i, op in enumerate(ops) if op.attr("op_role") & _OPTIMIZE)
    scopes = [op.attr(_SCOPE) if op.has_attr(_SCOPE) else "" for op in ops]
    clips = [i for i, scope in enumerate(scopes) if "/gradient_clip" in scope]
    # gradient -> what the last operation that reads it makes of it
    scaled = {own: ops[i].output_arg_names[0] for i in clips for own in ops[i].input_arg_names}
    own = {n: f"{n}@GRAD" if f"{n}@GRAD" in block.vars else read for n, read in updated.items()}
    dense = {n: each for n, each in own.items() if _is_dense(block.vars[each])}
    for name, each in dense.items():
        if each in scaled:
            yield "clipped_gradient", name, _kept(block, scaled[each], clips[-1] + 1)
    for name, each in dense.items():
        yield "gradient", name, _kept(block, each, first)


def _kept(block: Any, name: str, place: int) -> str:
    """Return the name of a copy of a variable, taken before the operation at a place."""
    kept, like = f"{name}@{place}@parity", block.vars[name]
    block.create_var(name=kept, dtype=like.dtype, shape=like.shape)
    block._insert_op(place, type="assign", inputs={"X": [name]}, outputs={"Out": [kept]})
    return kept


def _modules(block: Any, lasting: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the operations of the network by the names of what they return, for the header.

    A bias that is added to what reads a weight is that layer's.
    """
    layers: dict[str, dict[str, Any]] = {}  # what a layer without a bias returns -> the layer
    found = []
    for op in _forward(block):
        if not (returned := list(_returned(block, op))):
            continue
        kind, roles = _layer(op)
        own = {
            roles.get(f"{slot}.{place}", roles.get(slot, slot)): name
            for slot in op.input_names
            for place, name in enumerate(op.input(slot))
            if name in lasting
        }
        layer = layers.pop(op.input("X")[0], None) if op.type == "elementwise_add" else None
        if layer and list(own) == ["Y"]:
            layer["parameters"]["bias"], layer["name"] = own["Y"], returned[0]
            continue
        settings = {each: op.attr(each) for each in op.attr_names if not each.startswith("op_")}
        if op.type == "rnn":
            settings["time_major"] = True
        module = {
            "name": returned[0],
            "kind": kind if own else op.type,
            "parameters": own,
            "settings": plain(settings),
            "source": _source(op),
        }
        if [*own] == ["weight"]:
            layers[returned[0]] = module
        found.append(module)
    yield from found


def _layer(op: Any) -> tuple[str, Mapping[str, str]]:
    """Return which layer an operation with parameters is, and what that calls its inputs."""
    if op.type != "rnn":
        return _LAYERS.get(op.type, (op.type, {}))
    # all weights, and then all biases
    ends = ["", "_reverse"] if op.attr("is_bidirec") else [""]
    layers = [f"l{n}{end}" for n in range(op.attr("num_layers")) for end in ends]
    roles = [
        f"{what}_{which}_{layer}"
        for what in ("weight", "bias")
        for layer in layers
        for which in ("ih", "hh")
    ]
    named = {f"WeightList.{place}": role for place, role in enumerate(roles)}
    return op.attr("mode").partition("_")[0], named


def _source(op: Any) -> str:
    """Return the user's line that made an operation, such as "net.py:12"; else nothing."""
    here = Path.cwd()
    for frame in reversed(op.attr("op_callstack") or []):
        found = re.match(r'\s*File "(.+)", line (\d+)', frame)
        if found and "site-packages" not in found[1] and Path(found[1]).is_file():
            file = Path(found[1]).resolve()
            file = file.relative_to(here) if file.is_relative_to(here) else Path(file.name)
            return f"{file}:{found[2]}" if str(file).isprintable() else ""
    return ""


class Fetches:
    """Around the `run` of Paddle's executors: fetches what is recorded with each step.

    Args:
      optimizer: the `paddle.optimizer.Optimizer` that was built into the program.
    """

    def __init__(self, recording: Recording, program: Program, optimizer: Any):
        import paddle

        if recording.perturbation is not None or recording.is_given:
            raise UsageError(
                "the numbers of a static graph cannot be changed; allowed: dygraph"
            )
        self._paddle, self._to, self._program = paddle, recording, program
        self._optimizer = optimizer

    def __enter__(self) -> None:
        executor = self._paddle.static.Executor
        self._run, executor.run = executor.run, self._watched(executor.run)

    def __exit__(self, *exception: object) -> None:
        self._paddle.static.Executor.run = self._run

    def _watched(self, run: Any) -> Any:
        names = ("program", "feed", "fetch_list")

        def watched(executor: Any, *places: Any, **named: Any) -> Any:
            if len(places) > len(names):
                raise UsageError("run is given a scope by its place; allowed: scope=")
            asked = dict(zip(names, places, strict=False)) | named
            program = asked.get("program") or self._paddle.static.default_main_program()
            if getattr(program, "_program", None) is self._program.original:
                raise UsageError("the program is run as a CompiledProgram; allowed: as it is")
            if program is not self._program.original:
                return run(executor, **asked)
            scope = asked.get("scope") or self._paddle.static.global_scope()
            if not self._to.step:
                self._last("initial", scope)
            found = (
                self._step(run, executor, asked) if self._to.active else run(executor, **asked)
            )
            self._last("weight", scope)
            if self._to.wants("optimizer"):
                for slot, of_parameters in self._optimizer._accumulators.items():
                    for name, variable in of_parameters.items():
                        array = _array(_last_value(scope, variable.name))
                        self._to.add("optimizer", f"{name}/{slot}", array)
            self._to.end_step()
            return found

        return watched

    def _step(self, run: Any, executor: Any, asked: dict[str, Any]) -> Any:
        """Run a step that is recorded, and return what was asked of it."""
        if self._to.wants("batch"):
            for name, value in (asked.get("feed") or {}).items():
                self._to.add("batch", name, np.array(value))
        seen = [each for each in self._program.tensors if self._wants(*each)]
        own = asked.get("fetch_list") or []
        own = list(own) if isinstance(own, (list, tuple)) else [own]
        fetched = {"fetch_list": [*own, *(each for _, _, each in seen)], "return_numpy": False}
        found = list(run(executor, **asked | {"program": self._program.copy} | fetched))
        for (rung, name, _), tensor in zip(seen, found[len(own) :], strict=True):
            self._to.add(rung, name, _array(tensor))
        del found[len(own) :]
        if asked.get("return_numpy", True):
            return self._paddle.base.executor.as_numpy(found, copy=True)
        return found

    def _wants(self, rung: str, name: str, _: str) -> bool:
        outputs = rung in ("forward", "activation_gradient")
        return self._to.wants(rung, re.sub("[/#].*", "", name) if outputs else None)

    def _last(self, rung: str, scope: Any) -> None:
        """Record the variables that last."""
        if self._to.wants(rung):
            for name in (*self._program.parameters, *self._program.buffers):
                self._to.add(rung, name, _array(_last_value(scope, name)))


def _last_value(scope: Any, name: str) -> Any:
    """Return the tensor of a variable that lasts."""
    variable = scope.find_var(name)
    if variable is None or not variable.get_tensor()._is_initialized():
        raise UsageError(f"{name} has no value; allowed: to run the startup program before")
    return variable.get_tensor()


def _array(tensor: Any) -> np.ndarray:
    """Return a copy of a tensor's values; bfloat16, whose bits Paddle gives, as float32."""
    array = np.array(tensor)
    if "BF16" in str(tensor._dtype()):
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array
