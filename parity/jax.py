"""Records a JAX training while it runs: modules of flax, or functions, updated by optax."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.optimizer_state import slots_of
from parity.align.precision import in_tf32
from parity.align.weights import check_kept, read_weights
from parity.base.errors import UsageError
from parity.pair.perturbation import Draw, mapped
from parity.watch.hooks import Hooks
from parity.watch.modules import described, plain
from parity.watch.recording import Recording, leaves

Pairs = Iterable[tuple[str, Any]]  # of names and arrays
Variables = Iterable[tuple[tuple[Any, ...], Any]]  # of paths and arrays
_watching: list["_Hooks"] = []  # the trainings that are watched, innermost last

# Of modules and the optimiser: their name. As a plain attribute it goes through `nnx.jit` with
# them, and makes it compile anew for the watch; what it had compiled before serves again after.
_MARK = "_parity_name"

# What a rule of optax is made of -> what it calls a setting -> what others call that.
_PARTS: dict[str, dict[str, str]] = {
    "scale_by_adam": {
        **{"b1": "beta1", "b2": "beta2", "eps": "epsilon"},
        "eps_root": "eps_root",  # added below the root
    },
    "scale_by_rms": {"decay": "rho", "eps": "epsilon"}
    | {each: each for each in ("eps_in_sqrt", "bias_correction")},
    "trace": {"decay": "momentum", "nesterov": "nesterov"},
    "add_decayed_weights": {"weight_decay": "weight_decay"},
    "scale": {"step_size": "learning_rate"},
    "scale_by_schedule": {},
    **{name: {} for name in ("chain", "with_extra_args_support", "masked", "identity")},
    **{name: {} for name in ("clip", "clip_by_global_norm")},
}


@contextmanager
def watch(
    folder: str | Path, model: Any, optimizer: Any, **options: Any
) -> Iterator[Recording]:
    """Record every step of a training, which the optimiser's update ends.

        with parity.jax.watch("out/port", model, optimizer):
            train(model, optimizer, data)

    With flax's linen, whose modules and states are not changed but made anew, watch the module
    and the state that the training begins with; with a function of your own, its parameters
    and the optax transformation, and `tap` what else shall be seen.

    What is recorded, and the options, are those of `parity.torch.watch`; paths are joined by
    dots. `loss` is what `value_and_grad` or `grad` was asked of, `gradient` what the update was
    given. A compiled step becomes another program by being watched, whose results XLA may
    round otherwise in the last places; uncompiled, a step computes what it did, bit for bit.

    Args:
      folder: where the trace is written; one that is there is replaced.
      model: the `flax.nnx.Module`, the `flax.linen.Module`, or a mapping of parameters.
      optimizer: the `flax.nnx.Optimizer`; the `TrainState`, whose `apply_gradients` ends a
        step; or the `optax.GradientTransformation`, after whose `update`
        `optax.apply_updates` ends it.
      **options: those of `parity.watch.recording.Recording`.

    Raises:
      UsageError: for a model that cannot be watched, or an option that is not allowed.
    """
    import flax
    import jax
    import optax

    count = jax.process_count()
    if count > 1 and jax.local_device_count() > 1:  # each device would show its own
        raise UsageError(
            f"{count} processes of jax.distributed have {jax.local_device_count()} devices "
            "each; allowed: one device each, or one process"
        )
    options = {"ranks": (jax.process_index(), count), **options}
    hooks_of, held = _kind(model, optimizer)
    params = optimizer.params if hooks_of is _StateHooks else model
    params = flax.nnx.state(model, optimizer.wrt) if hooks_of is _Hooks else params
    # parameters may be NumPy's, which lie on no device
    lying = (each for _, array in held for each in getattr(array, "devices", set)())
    device = next(lying, jax.local_devices()[0])
    facts = {
        "device": str(device),
        "x64": jax.config.jax_enable_x64,
        "tf32": in_tf32("jax", jax, on_gpu=device.platform == "gpu"),
        "modules": _described(model) if hooks_of is _Hooks else _holders(held),
        **_rule_of(getattr(optimizer, "tx", optimizer), params),
    }
    trained = _named(params) if hooks_of is _StateHooks else held
    kinds = {str(each.dtype) for _, each in trained}
    versions = {each.__name__: each.__version__ for each in (jax, flax, optax)}
    recording = Recording(folder, "jax", kinds, versions, facts, **options)
    hooks = hooks_of(recording, model, optimizer)
    with recording:
        try:
            with hooks:
                yield recording
        except Exception as error:
            if hooks.failure is not None:  # JAX hands on its text alone
                raise hooks.failure from error
            raise


def tap(name: str, value: Any) -> Any:
    """Return a value that is recorded as `forward/NAME`, if a training is watched.

    So is its gradient, as that of a module's output is. In a compiled function, too.

    Args:
      name: what it is called; a second value of the name within a step is `NAME#1`.
      value: an array, or tuples, lists or mappings of them; those of floating point count.
    """
    return _watching[-1]._watched_output(name, value, {}) if _watching else value


def _kind(model: Any, optimizer: Any) -> tuple[type["_Hooks"], list[tuple[str, Any]]]:
    """Return which hooks watch a model, and (name, array) of its parameters.

    Raises:
      UsageError: if none do.
    """
    import optax
    from flax import linen, nnx
    from flax.training.train_state import TrainState

    kinds: list[tuple[type, str, Any, str, type[_Hooks]]] = [
        (nnx.Module, "flax.nnx.Module", nnx.Optimizer, "a flax.nnx.Optimizer", _Hooks),
        (linen.Module, "flax.linen.Module", TrainState, "a TrainState", _StateHooks),
        (
            *(Mapping, "mapping of parameters"),
            (optax.GradientTransformation, optax.MultiSteps),
            *("an optax.GradientTransformation", _RuleHooks),
        ),
    ]
    for kind, _, updater, allowed, hooks in kinds:
        if not isinstance(model, kind):
            continue
        if not isinstance(optimizer, updater):
            raise UsageError(f"optimizer is {type(optimizer).__name__}; allowed: {allowed}")
        if hooks is _Hooks:
            return hooks, list(_flat(model, nnx.Param))
        return hooks, _held(optimizer) if hooks is _StateHooks else _named(model)
    raise UsageError(
        f"model is {type(model).__name__}; allowed: a {', a '.join(each[1] for each in kinds)}"
    )


def load(model: Any, file: str | Path, optimizer: Any = None) -> Any:
    """Give a model the weights of a file that `parity weights` wrote; see `parity.torch.load`.

    A `TrainState` and a mapping of parameters are not changed: what is returned has the
    weights. They take no optimiser's state.

    Returns:
      The model that has the weights.

    Raises:
      UsageError: as `parity.torch.load` does.
    """
    from flax import nnx

    if not isinstance(model, nnx.Module):
        return _loaded(model, file)
    variables = dict(_own(model))
    optional = {name for name, each in variables.items() if not isinstance(each, nnx.Param)}
    shapes = {name: tuple(each[...].shape) for name, each in variables.items()}
    slots = None if optimizer is None else slots_of("jax", "optax")
    given = read_weights(file, shapes, optional, slots)

    def take(variable: Any, name: str, array: np.ndarray) -> None:
        variable[...] = array.astype(variable[...].dtype)
        check_kept(file, name, array, np.asarray(np.array(variable[...]), np.float64))

    for name, array in given.weights.items():
        take(variables[name], name, array)
    if optimizer is None:
        return model
    state = nnx.state(optimizer)
    held: dict[str, list[Any]] = {}
    for name, variable in _slots(_inner(nnx.to_flat_state(state)), list(_flat(model))):
        held.setdefault(name, []).append(variable)
    for (name, slot), array in given.state.items():
        if f"{name}/{slot}" not in held:
            raise UsageError(f"{file}: has {name}/{slot}, which the optimizer does not keep")
        take(held[f"{name}/{slot}"][0], name, array)
    for name in ("model/count", "model/step"):  # Adam counts, and a schedule by itself
        for variable in held.get(name, ()):
            take(variable, name, np.asarray(given.steps))
    nnx.update(optimizer, state)
    return model


def _loaded(model: Any, file: str | Path) -> Any:
    """Return a state of linen, or a mapping of parameters, with the weights of a file."""
    import jax
    from flax.training.train_state import TrainState

    held = _fields(model) if isinstance(model, TrainState) else {"params": model}
    if not isinstance(held["params"], Mapping):
        raise UsageError(
            f"model is {type(model).__name__}; allowed: a flax.nnx.Module, a TrainState, or a "
            "mapping of parameters"
        )
    arrays = {name: array for each in held.values() for name, array in _named(each)}
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    optional = arrays.keys() - dict(_named(held["params"])).keys()
    given = read_weights(file, shapes, optional, None).weights

    def take(path: Any, array: Any) -> Any:
        name = _path(_words(path))
        if name not in given:
            return array
        kept = jax.numpy.asarray(given[name], array.dtype)
        check_kept(file, name, given[name], np.asarray(kept, np.float64))
        return kept

    found = {name: jax.tree.map_with_path(take, each) for name, each in held.items()}
    return model.replace(**found) if isinstance(model, TrainState) else found["params"]


def _rule_of(rule: Any, params: Any) -> dict[str, Any]:
    """Return the kind and settings of an optax rule, by what its functions hold.

    Returns:
      `optimizer`, and if a mask leaves some out of the decay `optimizers`, a group each.
    """
    parts: list[str] = []
    masks: list[Any] = []
    settings: dict[str, Any] = {}
    todo, seen = [getattr(_accumulating(rule), "inner_opt", rule)], set[int]()
    while todo:
        each = todo.pop(0)
        each = getattr(each, "update", each)  # of a pair of functions; not what begins
        if isinstance(each, tuple):
            todo[:0] = each
        if not inspect.isfunction(each) or id(each) in seen:
            continue
        seen.add(id(each))
        part, held = each.__qualname__.partition(".")[0], inspect.getclosurevars(each).nonlocals
        parts.append(part)
        if part != "scale_by_schedule":  # whose functions, as those of a mask, are the user's
            todo[:0] = [held["inner"]] if part == "masked" else held.values()
        masks += [held["mask"]] if part == "masked" else []
        for name, value in plain(held).items():
            if other := _PARTS.get(part, {}).get(name):
                value = -value if part == "scale" else value
                if settings.setdefault(other, value) != value:
                    parts.append("several")  # groups of parameters, each with its own
        if part == "scale_by_adam" and held.get("nesterov"):
            parts.append("nadam")
    rules = [each for each in dict.fromkeys(parts) if each in ("scale_by_adam", "scale_by_rms")]
    scaled = "scale" in parts or "scale_by_schedule" in parts
    bare = [each for each in parts if each != "with_extra_args_support"]
    of_masks = [inner for outer, inner in pairwise(bare) if outer == "masked"]
    known = _PARTS.keys() >= set(parts) and of_masks in ([], ["add_decayed_weights"])
    if not known or len(rules) > 1 or not scaled:
        return {"optimizer": {"kind": "optax", "settings": {}}, "optimizers": []}
    kind = {"scale_by_adam": "adam", "scale_by_rms": "rmsprop"}.get("".join(rules), "sgd")
    if kind == "adam" and "add_decayed_weights" in parts[parts.index("scale_by_adam") :]:
        kind = "adamw"
    groups = [
        {"kind": kind, "settings": {**settings, **own}, "parameters": names}
        for mask in masks
        for own, names in zip(({}, {"weight_decay": 0.0}), _masked(mask, params), strict=True)
        if names
    ]
    whole = {"kind": kind, "settings": groups[0]["settings"] if groups else settings}
    return {"optimizer": whole, "optimizers": groups if len(groups) > 1 else []}


def _accumulating(rule: Any) -> Any:
    """Return the `optax.MultiSteps` that a rule is, or was made of; None for other rules."""
    import optax

    owner = getattr(getattr(rule, "update", None), "__self__", rule)
    return owner if isinstance(owner, optax.MultiSteps) else None


def _inner(state: Variables) -> list[tuple[tuple[Any, ...], Any]]:
    """Return what a rule keeps, less that by which `optax.MultiSteps` accumulates gradients."""
    state, inner = list(state), "inner_opt_state"
    found = [(path[path.index(inner) + 1 :], value) for path, value in state if inner in path]
    return found or state


def _clips(rule: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions by which an optax chain clips before all else."""
    todo = [rule]
    while todo:
        each = todo.pop(0)
        each = getattr(each, "update", each)
        if isinstance(each, tuple):
            todo[:0] = each
            continue
        part = getattr(each, "__qualname__", "").partition(".")[0]
        if not str(each.__module__).startswith("optax."):  # a user's own rule
            return
        if part in ("chain", "with_extra_args_support"):
            todo[:0] = inspect.getclosurevars(each).nonlocals.values()
        elif part in ("clip", "clip_by_global_norm"):
            yield each
        else:
            return


def _masked(mask: Any, params: Any) -> tuple[list[str], list[str]]:
    """Return the names of the parameters that a mask of optax has, and of the others."""
    import jax
    from flax import nnx

    def whole(each: Any) -> bool:
        return isinstance(each, nnx.Variable)

    found: tuple[list[str], list[str]] = [], []

    def take(path: Any, has: Any, part: Any) -> None:  # which may be a module's parameters
        (value,) = jax.tree.leaves(has)
        for rest, _ in jax.tree.leaves_with_path(part, is_leaf=whole):
            found[not value].append(_path(_words((*path, *rest))))

    given = mask(params) if callable(mask) else mask
    jax.tree.map_with_path(take, given, params, is_leaf=whole)
    return found


def _own(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, variable) of what the modules hold, each once."""
    from flax import nnx

    seen = set[int]()
    for path, module in nnx.iter_modules(model):
        for role, each in vars(module).items():
            variable = isinstance(each, nnx.Variable) and not isinstance(each, nnx.RngState)
            if variable and id(each) not in seen:
                seen.add(id(each))
                yield _path((*path, role)), each


def _described(model: Any) -> list[dict[str, Any]]:
    """Return what the modules of a model are, for the header."""
    from flax import nnx

    return described(
        ((_path(path) or "model", module) for path, module in nnx.iter_modules(model)),
        "flax",
        lambda module: vars(module).items(),
        {id(each): name for name, each in _own(model)},
        _settings,
    )


def _holders(held: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return what is known of modules by their parameters: linen calls a Dense `Dense_0`."""
    found: dict[str, dict[str, str]] = {"model": {}}
    for name, _ in held:
        module, _, role = name.rpartition(".")
        around = module.rpartition(".")[0]  # a cell has its parameters in layers of gates
        found |= {around: {}} if around and around not in found else {}
        found.setdefault(module or "model", {})[role] = name
    return [
        {
            "name": module,
            "kind": re.sub(r"_\d+$", "", module.rpartition(".")[2]),
            "parameters": parameters,
            "settings": {},
            "source": "",
        }
        for module, parameters in found.items()
    ]


def _settings(module: Any) -> dict[str, Any]:
    """Return what a module was made with; of its functions, that of attention by its name."""
    attends = getattr(getattr(module, "attention_fn", None), "__name__", None)
    return {**vars(module), "attention_fn": attends} if attends else vars(module)


class Tap:
    """How JAX shows values to a function, in compiled code, too, in the program's order.

    Attributes:
      failure: the error of a function that failed.
    """

    def __init__(self) -> None:
        self.failure: UsageError | None = None

    def show(self, function: Callable[..., int | None], tensors: Sequence[Any]) -> Any:
        """Call a function with arrays when the tensors have their values; return its number."""
        import jax
        from jax.experimental import io_callback

        def called(*given: Any) -> np.int32:
            try:
                return np.int32(function([np.array(each) for each in given]) or 0)
            except UsageError as error:
                self.failure = error
                raise

        if not any(isinstance(each, jax.core.Tracer) for each in tensors):
            return called(*tensors)
        kind = jax.ShapeDtypeStruct((), np.int32)
        return io_callback(called, kind, *tensors, ordered=True)

    def move(self, tensor: Any, draw: Draw) -> Any:
        """Return a tensor that is larger or smaller by drawn shares of itself."""
        import jax
        from jax.experimental import io_callback

        def drawn() -> np.ndarray:
            return draw(tensor.shape).astype(tensor.dtype)

        kind = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
        traced = isinstance(tensor, jax.core.Tracer)
        shares = io_callback(drawn, kind, ordered=True) if traced else drawn()
        return tensor + jax.lax.stop_gradient(tensor) * shares

    def pass_on(
        self,
        tensors: list[Any],
        others: list[Any],
        seen: Callable[[list[np.ndarray]], int | None],
        gradient: Callable[[int, list[np.ndarray]], None] | None = None,
        move: Callable[[Any], Any] = lambda x: x,
    ) -> list[Any]:
        """Return tensors that functions see, and their gradients, where JAX differentiates.

        Args:
          tensors: of floating point.
          others: what `seen` is shown after them.
          seen: returns a number, such as that of a module's call.
          gradient: called with that number and the gradients.
          move: what is done to each gradient.
        """
        import jax

        @jax.custom_vjp
        def same(tensors: list[Any], others: list[Any]) -> list[Any]:
            return tensors

        def forward(tensors: list[Any], others: list[Any]) -> tuple[list[Any], Any]:
            return tensors, self.show(seen, [*tensors, *others])

        def backward(number: Any, gradients: list[Any]) -> tuple[list[Any], None]:
            if gradient is not None:
                self.show(lambda x: gradient(int(x[0]), x[1:]), [number, *gradients])
            return list(map(move, gradients)), None

        same.defvjp(forward, backward)
        return list(same(tensors, jax.lax.stop_gradient(others)))


class _Hooks(Hooks, Tap):
    """Functions around the modules' `__call__` and the update, which hand on what they see."""

    _ends = "optimizer.update(model, grads) of the two that are watched"

    def __init__(self, recording: Recording, model: Any, optimizer: Any):
        Hooks.__init__(self, recording)
        Tap.__init__(self)
        self._model, self._optimizer = model, optimizer
        rule = getattr(optimizer, "tx", optimizer)
        self._accumulating = _accumulating(rule)
        # accumulated gradients are clipped where they are not seen
        self._clips = [] if self._accumulating else list(_clips(rule))
        self._modules: dict[str, Any] = {}
        self._open = self._updated = False

    def __enter__(self) -> "_Hooks":
        import jax

        self._watch()
        for name in ("value_and_grad", "grad"):
            self._replace(jax, name, self._watched_grad)
        self._open = True
        _watching.append(self)
        self._undo.callback(_watching.remove, self)
        self._begin()
        return self

    def _watch(self) -> None:
        """Put functions around what calls modules, and what updates them."""
        from flax import nnx

        rngs = (nnx.Rngs, nnx.RngStream)
        self._modules = {
            _path(path) or "model": each
            for path, each in nnx.iter_modules(self._model)
            if not isinstance(each, rngs) and _callable(type(each))
        }
        for owner in {type(each): None for each in self._modules.values()}:
            self._replace(owner, "__call__", self._watched_call(owner))
        for name, each in {**self._modules, "optimizer": self._optimizer}.items():
            setattr(each, _MARK, name)
            self._undo.callback(delattr, each, _MARK)
        self._replace(type(self._optimizer), "update", self._watched_update)

    def _begin(self) -> None:
        """Record the weights before the first step, which are moved first if that is asked."""
        from flax import nnx

        if self._to.perturbation:
            for _, each in _own(self._model):
                each[...] = self._moved(each[...])
        self._show_initial(_flat(self._model, nnx.Not(nnx.RngState)))

    def _show_initial(self, weights: Iterable[tuple[str, Any]]) -> None:
        if self._to.wants("initial"):
            for name, value in weights:
                self._to.add("initial", name, np.array(value))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        import jax

        try:
            jax.effects_barrier()
        finally:
            self._open = False
            self._undo.close()
        if kind is None and not self._updated:
            raise UsageError(
                f"no update of the optimizer was seen; allowed: steps that call {self._ends}"
            )
        if kind is None and not self._to.step:
            raise UsageError(
                "no step was shown to this process: rank 0 alone sees arrays that all share; "
                "allowed: a step in jax.shard_map, where each sees its own"
            )

    def _move(self, tensor: Any, draw: Draw) -> Any:
        return self.move(tensor, draw)

    def _watched_call(self, owner: type) -> Any:
        import jax

        def wrap(call: Any) -> Any:
            def watched(module: Any, *inputs: Any, **named: Any) -> Any:
                label = getattr(module, _MARK, None)
                if not self._open or label is None or type(module) is not owner:
                    return call(module, *inputs, **named)
                if label == "model" and self._to.perturbation:
                    moved = mapped((inputs, named), (jax.Array, np.ndarray), self._moved)
                    output = call(module, *moved[0], **moved[1])
                else:
                    output = call(module, *inputs, **named)
                return self._watched_output(label, output, {**dict(enumerate(inputs)), **named})

            return watched

        return wrap

    def _watched_output(self, label: str, output: Any, given: Any) -> Any:
        import jax

        found = [pair for pair in leaves(output, jax.Array) if "float" in str(pair[1].dtype)]
        if not found:
            return output
        self._seen.add(label)
        batch = list(leaves(given, (jax.Array, np.ndarray))) if label == "model" else []
        paths, inputs = ([path for path, _ in each] for each in (found, batch))

        def seen(arrays: list[np.ndarray]) -> int:
            to, of_output = self._to, len(paths)
            if not self._open or not to.active:
                return 0
            call = to.call(label)
            number = call.removeprefix(label)
            if to.wants("forward", label):
                for path, array in zip(paths, arrays, strict=False):
                    to.add("forward", call + path, array)
            if to.wants("batch"):
                for path, array in zip(inputs, arrays[of_output:], strict=True):
                    to.add("batch", path.removeprefix("/") + number, array)
            return int(number.removeprefix("#") or 0)

        def gradient(number: int, arrays: list[np.ndarray]) -> None:
            if self._open and self._to.wants("activation_gradient", label):
                call = f"{label}#{number}" if number else label
                for path, array in zip(paths, arrays, strict=True):
                    self._to.add("activation_gradient", call + path, array)

        passed = self.pass_on(
            [self._moved(each) for _, each in found],
            [each for _, each in batch],
            seen,
            gradient,
            self._moved,
        )
        by_id = {id(old): new for (_, old), new in zip(found, passed, strict=True)}
        return jax.tree.map(lambda each: by_id.get(id(each), each), output)

    def _watched_grad(self, transform: Any) -> Any:
        def seen(arrays: list[np.ndarray]) -> None:
            if self._open and self._to.wants("loss"):
                self._to.add("loss", "loss", arrays[0])

        def watched(function: Any, *arguments: Any, **named: Any) -> Any:
            def shown(*inputs: Any, **more: Any) -> Any:
                found = function(*inputs, **more)
                if not self._open:
                    return found
                if not isinstance(found, tuple):
                    return self.pass_on([found], [], seen)[0]
                return (self.pass_on([found[0]], [], seen)[0], *found[1:])  # has_aux

            return transform(shown, *arguments, **named)

        return watched

    def _watched_update(self, update: Any) -> Any:
        def watched(optimizer: Any, model: Any, grads: Any, **named: Any) -> Any:
            if not self._open or not hasattr(optimizer, _MARK):
                return update(optimizer, model, grads, **named)
            from flax import nnx

            gradients = self._accumulated(_flat(grads), list(_variables(optimizer)))
            result = update(optimizer, model, grads, **named)
            weights = list(_flat(model, nnx.Not(nnx.RngState)))
            self._show_step(gradients, _variables(optimizer), weights)
            return result

        return watched

    def _accumulated(self, gradients: Pairs, state: Variables) -> list[tuple[str, Any]]:
        """Return gradients as `optax.MultiSteps` accumulates them, which does not keep them.

        Args:
          gradients: those of the last micro-batch; of a whole step without `MultiSteps`.
          state: the optimiser's, before it is given them.
        """
        if self._accumulating is None:
            return list(gradients)
        sums, taken = dict[str, Any](), 0
        for path, value in state:
            if "acc_grads" in path:
                sums[_path(path[path.index("acc_grads") + 1 :])] = value
            taken = value if path[-1] == "mini_step" else taken
        if getattr(self._accumulating, "_use_grad_mean", True):
            return [
                (name, sums[name] + (g - sums[name]) / (taken + 1)) for name, g in gradients
            ]
        return [(name, sums[name] + g) for name, g in gradients]

    def _show_step(self, gradients: Pairs, state: Variables, weights: Pairs) -> None:
        """Record what the optimiser was given and made of it; a last micro-batch ends it."""
        self._check_seen()
        gradients, weights, state = list(gradients), list(weights), list(state)
        found = [("gradient", *pair) for pair in gradients]
        if self._clips:
            clipped = dict(gradients)
            for clip in self._clips:
                clipped, _ = clip(clipped, ())  # it keeps no state
            found += [("clipped_gradient", *pair) for pair in clipped.items()]
        found += [("optimizer", *pair) for pair in _slots(_inner(state), weights)]
        found += [("weight", *pair) for pair in weights]
        taken = [value for path, value in state if path[-1:] == ("mini_step",)]

        def seen(arrays: list[np.ndarray]) -> None:
            if not self._open or any(arrays[len(found) :]):  # further micro-batches follow
                return
            for (rung, name, _), array in zip(found, arrays[: len(found)], strict=True):
                if self._to.wants(rung):
                    self._to.add(rung, name, array)
            self._to.end_step()

        self.show(seen, [*(value for _, _, value in found), *taken])

    def _check_seen(self) -> None:
        """Say, when the first step is computed or traced, which modules were never called."""
        first, self._updated = not self._updated, True
        if first and self._modules and self._to.wants("forward"):
            self._check_called(
                [
                    name
                    for name in self._modules
                    if not any(other.startswith(f"{name}.") for other in self._modules)
                ],
                "no module of the model was called; allowed: the model that the loop trains, "
                "not split into its state before it is watched",
            )


class _RuleHooks(_Hooks):
    """Functions around an optax transformation, and the calls of whatever linen modules."""

    _ends = "update of the transformation that is watched, and optax.apply_updates"

    def _watch(self) -> None:
        import jax
        from flax import linen

        self._watch_update()
        self._undo.enter_context(linen.intercept_methods(self._intercepted))
        # what was compiled before saw nothing, and what is compiled now must not stay
        jax.clear_caches()
        self._undo.callback(jax.clear_caches)

    def _watch_update(self) -> None:
        import optax

        self._given: tuple[Any, Any] | None = None  # gradients, and the state after them
        self._replace(optax.GradientTransformation, "update", self._watched_rule)
        if isinstance(self._optimizer, optax.MultiSteps):
            self._replace(self._optimizer, "update", self._watched_given)
        self._replace(optax, "apply_updates", self._watched_apply)

    def _begin(self) -> None:
        if self._to.perturbation:
            raise UsageError("the weights are the loop's own to move; allowed: flax.nnx")
        self._show_initial(self._weights())

    def _weights(self) -> list[tuple[str, Any]]:
        return _named(self._model)

    def _intercepted(self, call: Any, inputs: Any, named: Any, context: Any) -> Any:
        output = call(*inputs, **named)
        module, name = context.module, _path(context.module.path) or "model"
        if not self._open or context.method_name != "__call__" or module.is_initializing():
            return output
        if not self._updated:
            (told,) = described([(name, module)], "flax", lambda _: (), {}, _settings)
            self._to.describe(name, told["kind"], told["settings"])
        given = {**dict(enumerate(inputs)), **named}
        return self._watched_output(name, output, given)

    def _watched_rule(self, getter: Any) -> Any:
        def update(rule: Any) -> Any:
            own, watches = getter.__get__(rule), self._open and rule is self._optimizer
            return self._watched_given(own) if watches else own

        return property(update)

    def _watched_given(self, update: Any) -> Any:
        def watched(updates: Any, *rest: Any, **named: Any) -> Any:
            result = update(updates, *rest, **named)
            before = rest[0] if rest else named["state"]
            self._given = self._accumulated(_named(updates), _paths(before)), result[1]
            return result

        return watched

    def _watched_apply(self, apply: Any) -> Any:
        def watched(params: Any, updates: Any) -> Any:
            result = apply(params, updates)
            if self._open and self._given is not None:
                (gradients, state), self._given = self._given, None
                self._show_step(gradients, _paths(state), _named(result))
            return result

        return watched


class _StateHooks(_RuleHooks):
    """Functions around the update of a state, and the calls of linen modules."""

    _ends = "apply_gradients of the state that is watched"

    def _watch_update(self) -> None:
        self._modules = {"model": self._model}
        self._replace(type(self._optimizer), "apply_gradients", self._watched_state)

    def _weights(self) -> list[tuple[str, Any]]:
        return _held(self._optimizer)

    def _watched_state(self, apply: Any) -> Any:
        def watched(state: Any, *, grads: Any, **named: Any) -> Any:
            result = apply(state, grads=grads, **named)
            if self._open and state.tx is self._optimizer.tx:
                kept = [(("step",), result.step), *_paths(result.opt_state)]
                gradients = self._accumulated(_named(grads), _paths(state.opt_state))
                self._show_step(gradients, kept, _held(result))
            return result

        return watched


def _paths(tree: Any) -> Variables:
    """Yield (path, array) of what a tree of JAX holds, without linen's word `params`."""
    import jax

    for path, value in jax.tree.leaves_with_path(tree):
        key = jax.dtypes.issubdtype(getattr(value, "dtype", None), jax.dtypes.prng_key)
        yield _words(path), jax.random.key_data(value) if key else value


def _words(path: Any) -> tuple[Any, ...]:
    keys = [
        next(getattr(each, role) for role in ("key", "name", "idx") if hasattr(each, role))
        for each in path
    ]
    return tuple(each for each in keys if each != "params")


def _named(tree: Any) -> list[tuple[str, Any]]:
    return [(_path(path), value) for path, value in _paths(tree)]


def _held(state: Any) -> list[tuple[str, Any]]:
    """Return (name, array) of a state's parameters, and of such as `batch_stats`."""
    return [pair for each in _fields(state).values() for pair in _named(each)]


def _fields(state: Any) -> dict[str, Any]:
    others = {name: each for name, each in vars(state).items() if isinstance(each, Mapping)}
    return {"params": state.params} | {n: e for n, e in others.items() if n != "opt_state"}


def _flat(holder: Any, *chosen: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, array) of what a module, or a state, holds."""
    for path, value in _variables(holder, *chosen):
        yield _path(path), value


def _variables(holder: Any, *chosen: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    from flax import nnx

    state = holder if isinstance(holder, nnx.State) else nnx.state(holder, *chosen)
    for path, value in nnx.to_flat_state(state):
        held = value.get_value() if isinstance(value, nnx.Variable) else value
        for rest, each in _paths(held):  # optax keeps several, or none, where a mask leaves out
            yield (*path, *rest), each


def _slots(state: Variables, weights: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield what optax keeps: opt_state.0.mu.dense.kernel is dense.kernel/mu."""
    names = {name for name, _ in weights}
    for path, value in state:
        words = [each for each in path if each != "opt_state"]
        size = len(words)
        # numbers behind the name tell apart several arrays of one parameter
        ends = (j for j in range(size, 0, -1) if all(isinstance(n, int) for n in words[j:]))
        found = ((i, j) for j in ends for i in range(j) if _path(words[i:j]) in names)
        start, stop = next(found, (size, size))
        kept = [each for each in words[:start] if not isinstance(each, int)]
        if start < size:  # what a rule is wrapped in is no part of the slot
            kept = kept[-1:]
        yield f"{_path(words[start:stop]) or 'model'}/{_path(kept) or 'state'}", value


def _path(path: Iterable[Any]) -> str:
    return ".".join(map(str, path))


def _callable(kind: type) -> bool:
    return any("__call__" in vars(base) for base in kind.__mro__)
