"""Records a Keras 3 training while it runs: `watch` around `fit` or a loop of one's own."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.optimizer_state import HOLDS_RATE, slots_of, velocity_of
from parity.align.precision import in_tf32
from parity.align.weights import check_kept, read_weights
from parity.base.errors import UsageError
from parity.jax import Tap
from parity.pair.perturbation import Draw, mapped
from parity.watch.hooks import Hooks
from parity.watch.modules import described, plain
from parity.watch.recording import Recording, leaves

Seen = Callable[..., Any] | None  # what is called with a number and a gradient
Change = Callable[[Any], Any]

_REPLACED = ("forward", "activation_gradient")
_ENDING = ("clipped_gradient", "optimizer", "weight")  # recorded where a step ends
COMPILED = (
    "the training is compiled with jit_compile=True, Keras's choice on a GPU, and nothing can "
    "be seen in it; allowed: jit_compile=False"
)


@contextmanager
def watch(
    folder: str | Path, model: Any, optimizer: Any = None, **options: Any
) -> Iterator[Recording]:
    """Record every step of a training, which `optimizer.apply` ends; on JAX, `train_step`.

        with parity.keras.watch("out/port", model):
            model.fit(x, y)

    What is recorded, and the options, are those of `parity.torch.watch`. Layers and variables
    have Keras's paths. `loss` is what the gradients were asked of, `gradient` what the
    optimiser was given, `clipped_gradient` what its `clipnorm` or `clipvalue` made of it.

    Args:
      folder: where the trace is written; one that is there is replaced.
      model: the `keras.Model`, which is built.
      optimizer: the `keras.optimizers.Optimizer`. None: the one the model is compiled with.
      **options: those of `parity.watch.recording.Recording`.

    Raises:
      UsageError: for a model that cannot be watched, or an option that is not allowed.
    """
    import keras

    engines: dict[str, Any] = {"tensorflow": TensorFlow, "torch": _PyTorch, "jax": _Jax}
    name = keras.backend.backend()
    if name not in engines:
        raise UsageError(f"Keras runs on {name}; allowed: {', '.join(sorted(engines))}")
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    _check(model, optimizer)
    strategy = getattr(model, "_distribute_strategy", None)
    engine = engines[name]()
    kinds = {str(each.dtype) for each in model.weights}
    versions = {"keras": keras.__version__, name: engine.version}
    facts = {
        "backend": name,
        "tf32": engine.tf32,
        # what an operation makes of float64: on JAX and PyTorch many go on in float32
        "of_float64": keras.backend.result_type("float64", "float32"),
        "loss": "mean" if strategy is None else "sum",  # the ranks' own
        "modules": _modules(model),
        **rules_of(optimizer, {each.path: each for each in model.trainable_variables}),
    }

    def hooks_of(engine: Any) -> LayerHooks:
        given = {**options, "ranks": engine.ranks or options.get("ranks")}
        recording = Recording(folder, "keras", kinds, versions, facts, **given)
        return LayerHooks(recording, engine, model, optimizer)

    with recorded(map(hooks_of, engine.replicas(strategy))) as recording:
        yield recording


@contextmanager
def recorded(replicas: Iterable["LayerHooks"]) -> Iterator[Recording]:
    """Record by hooks what a block trains; what a hook raised is raised as it was.

    Args:
      replicas: the hooks of each replica that this process trains.
    """
    with ExitStack() as stack:
        for hooks in replicas:
            stack.enter_context(_recorded(hooks))
        yield hooks.recording


@contextmanager
def _recorded(hooks: "LayerHooks") -> Iterator[None]:
    with hooks.recording:
        try:
            with hooks:
                yield
        except Exception as error:
            if (cause := hooks.cause(error)) is not None:
                raise cause from error
            raise


def _check(model: Any, optimizer: Any) -> None:
    """Refuse what would be seen in part only."""
    import keras

    if not isinstance(model, keras.Model):
        raise UsageError(f"model is {type(model).__name__}; allowed: a keras.Model")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"optimizer is {optimizer!r}; allowed: a keras.optimizers.Optimizer, or None for a "
            "model that is compiled"
        )
    if model.compiled and model.jit_compile and keras.backend.backend() != "jax":
        raise UsageError(COMPILED)
    missing = [each.name for each in model._flatten_layers() if not each.built]
    if not model.built or (missing and not getattr(model, "_called", True)):
        raise UsageError(
            f"not built yet: {', '.join(missing)}; allowed: a model that was built, or called "
            "once, before it is watched"
        )


def load(model: Any, file: str | Path, optimizer: Any = None) -> None:
    """Give a built model the weights of a file that `parity weights` wrote; see
    `parity.torch.load`.

    Raises:
      UsageError: as `parity.torch.load` does.
    """
    import keras

    variables = {each.path: each for each in model.variables}
    trained = {each.path for each in model.trainable_variables}
    shapes = {name: tuple(each.shape) for name, each in variables.items()}
    kind = type(optimizer).__name__
    slots = None if optimizer is None else slots_of("keras", kind)
    given = read_weights(file, shapes, variables.keys() - trained, slots)

    def take(variable: Any, name: str, array: np.ndarray) -> None:
        variable.assign(array)
        kept = keras.ops.convert_to_numpy(variable.value)
        check_kept(file, name, array, np.asarray(kept, np.float64))

    for name, array in given.weights.items():
        take(variables[name], name, array)
    if optimizer is None:
        return
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    held = dict(kept_by(optimizer, model.trainable_variables, lambda each: str(each.path)))
    for (name, slot), array in given.state.items():
        if ("keras", kind.lower()) == HOLDS_RATE:
            rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
            array = velocity_of(array, rate)
        take(held[f"{name}/{slot}"], name, array)
    optimizer._iterations.assign(given.steps * _micro_batches(optimizer))


def rules_of(optimizer: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimiser's kind and settings, for the header, and of which variables they are.

    Args:
      variables: name -> what it trains.

    Returns:
      `optimizer`, and if some variables are left out of the decay `optimizers`, a group each.
    """
    kind, settings = type(optimizer).__name__, plain(_config(optimizer))
    decay, alike = settings.get("weight_decay"), dict[Any, list[str]]()
    for name, each in variables.items():
        own = 0.0 if decay and not optimizer._use_weight_decay(each) else decay
        alike.setdefault(own, []).append(name)
    rules = [
        {"kind": kind, "settings": {**settings, "weight_decay": own}, "parameters": names}
        for own, names in alike.items()
    ]
    whole = {"kind": kind, "settings": settings}
    return {"optimizer": whole, "optimizers": rules if len(rules) > 1 else []}


def _config(each: Any) -> Any:
    """Return what a layer or an optimiser was made with."""
    try:
        return each.get_config()
    except NotImplementedError:  # of a cell or a schedule of the user's
        return vars(each)


def kept_by(
    optimizer: Any, variables: Iterable[Any], name_of: Callable[[Any], str]
) -> Iterator[tuple[str, Any]]:
    """Yield what an optimiser keeps: dense_kernel_velocity is dense/kernel/velocity.

    Of variables with one name of their own, the first has the first slot. What gradients are
    accumulated in is left out.
    """
    sums = optimizer._accumulated_gradients if _micro_batches(optimizer) > 1 else ()
    left_out = {id(each) for each in sums}
    owners: dict[str, list[str]] = {}
    for each in variables:
        own = getattr(each, "path", each.name)
        own = own.replace("/", "_").replace(":", "_") + "_"
        owners.setdefault(own, []).append(name_of(each))
    numbers: Counter[str] = Counter()
    for each in optimizer.variables:
        if id(each) in left_out:
            continue
        own = each.path.rpartition("/")[2]
        start = max((name for name in owners if own.startswith(name)), key=len, default="")
        names = owners.get(start, ["model"])
        name = names[min(numbers[own], len(names) - 1)]
        numbers[own] += 1
        yield f"{name}/{own.removeprefix(start)}", each


def _micro_batches(optimizer: Any) -> int:
    """Return of how many batches an optimiser accumulates the gradients of a step."""
    return getattr(optimizer, "gradient_accumulation_steps", None) or 1


def _layers(model: Any) -> list[tuple[str, Any]]:
    """Return (name, layer) of all layers but those that return nothing of their own."""
    from keras.layers import InputLayer

    return [
        (each.path or each.name, each)
        for each in model._flatten_layers(include_self=False)
        if not isinstance(each, InputLayer)
    ]


def _modules(model: Any) -> list[dict[str, Any]]:
    """Return what the layers of a model are, for the header."""

    def settings(layer: Any) -> Any:
        own = type(layer).__module__.split(".", 1)[0] == "keras" and layer is not model
        return _config(layer) if own else {}

    return described(
        [("model", model), *_layers(model)],
        "keras",
        lambda layer: [
            (each.path.rpartition("/")[2], each)
            for each in (*layer._trainable_variables, *layer._non_trainable_variables)
        ],
        {id(each): each.path for each in model.variables},
        settings,
    )


class _Engine:
    """What frameworks have in common.

    Attributes:
      tensor: the class of its tensors.
      version: its version.
      tf32: what it rounds to TF32.
      training: returns whether gradients are asked for.
      backward: of losses: the class, or module, and the name of what differentiates them.
      whole: whether all weights have their values once the optimiser was applied.
      ranks: which replica this shows, of how many; None if there is but one.
    """

    tensor: Any
    version: str
    tf32: str
    training: Callable[[], bool]
    backward: tuple[Any, str]
    whole = True

    def differentiate(self, backward: Any, shown: Callable[[Any], None]) -> Any:
        """Return a function that differentiates as another does, and shows the loss first."""

        def watched(*arguments: Any, **named: Any) -> Any:
            shown(named["target"] if "target" in named else arguments[self._place])
            return backward(*arguments, **named)

        return watched

    _place = 0  # of the loss among the arguments
    ranks: tuple[int, int] | None = None

    def here(self) -> bool:
        """Return whether what runs is the replica that this shows."""
        return True

    def within(self, function: Callable[[], None]) -> None:
        """Call a function in the replica that this shows."""
        function()

    def replicas(self, strategy: Any) -> list["_Engine"]:
        """Return what shows each replica of this process."""
        return [self]

    def unwatched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is left as it is, as Keras's own are."""
        return function

    def finish(self) -> None:
        """Wait until all functions have been called."""


class TensorFlow(_Engine):
    """How TensorFlow shows a tensor to a function, eagerly and from inside a `tf.function`."""

    _place = 1

    def __init__(self, strategy: Any = None, replica: int = 0) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import record
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable

        self._tf, self.version, self.tensor = tf, tf.__version__, tf.Tensor
        gpus = tf.config.list_physical_devices("GPU")
        self.tf32 = in_tf32("tensorflow", tf, on_gpu=bool(gpus))
        self._strategy = strategy
        if strategy is not None:
            self.ranks = replica, strategy.num_replicas_in_sync
        self.flatten = tf.nest.flatten
        self.training = lambda: record.could_possibly_record() and self.here()
        self.backward = (tf.GradientTape, "gradient")
        with tf.device("CPU"):  # one for all replicas, in the scope of a strategy, too
            self._turn = ResourceVariable(0, trainable=False, dtype=tf.int64)

    def replicas(self, strategy: Any) -> list[_Engine]:
        if strategy is None:
            return [self]
        tf = self._tf
        if not isinstance(
            strategy,
            (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy),
        ):
            raise UsageError(
                f"model is under a {type(strategy).__name__}; allowed: MirroredStrategy, "
                "MultiWorkerMirroredStrategy, or none"
            )
        ids = strategy.experimental_local_results(strategy.run(self._replica))
        return [TensorFlow(strategy, int(each)) for each in ids]

    def _replica(self) -> Any:
        return self._tf.distribute.get_replica_context().replica_id_in_sync_group

    def here(self) -> bool:
        if self.ranks is None:
            return True
        inside = not self._tf.distribute.in_cross_replica_context()
        return inside and self._tf.get_static_value(self._replica()) == self.ranks[0]

    def within(self, function: Callable[[], None]) -> None:
        if self.ranks is None:
            function()
        else:
            self._strategy.run(self.unwatched(lambda: function() if self.here() else None))

    def show(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        """Call a function with arrays when the tensors have their values; return a number.

        In a graph this keeps its place in the program, next to a loop as well, because all
        read and then write one variable.
        """
        number = self._call(lambda arrays: function(arrays[1:]), [self._turn, *tensors])
        with self._tf.control_dependencies([number]):
            self._turn.assign_add(1)
        return number

    def _call(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        def called(*arrays: Any) -> np.ndarray:
            number = function([np.asarray(each) for each in arrays])
            return np.asarray(0 if number is None else number, np.int64)

        dense = [self._tf.convert_to_tensor(each) for each in tensors]
        return self._tf.numpy_function(called, dense, self._tf.int64)

    def move(self, tensor: Any, draw: Draw) -> Any:
        """Return a tensor that is larger or smaller by drawn shares of itself."""
        tf = self._tf
        tensor = tf.convert_to_tensor(tensor)

        def drawn(shape: np.ndarray) -> np.ndarray:
            return draw(tuple(shape)).astype(tensor.dtype.as_numpy_dtype)

        shares = tf.numpy_function(drawn, [tf.shape(tensor)], tensor.dtype)
        moved = tensor + tf.stop_gradient(tensor) * shares
        moved.set_shape(tensor.shape)
        return moved

    def pass_on(self, tensor: Any, number: Any, function: Seen, move: Change) -> Any:
        """Return a tensor whose gradient, and the number that `show` gave, a function sees.

        Args:
          move: what is done to the gradient.
        """
        tf = self._tf

        @tf.custom_gradient
        def identity(x: Any) -> Any:
            def gradient(y: Any) -> Any:
                # what is recorded next waits for the weights, and they for all gradients
                with tf.control_dependencies([self._call(seen, [number, y])]):
                    return tf.identity(move(y))

            return tf.identity(x), gradient

        def seen(arrays: list[np.ndarray]) -> None:
            assert function is not None
            function(*arrays)

        with tf.control_dependencies([number]):
            return identity(tensor) if function else tf.identity(tensor)

    def given(self, tensor: Any, number: Any, find: Callable[[int], np.ndarray | None]) -> Any:
        """Return a tensor with the values that a function finds for a call, if it finds any."""
        tf = self._tf

        def called(number: np.ndarray, own: np.ndarray) -> np.ndarray:
            found = find(int(number))
            return own if found is None else found.astype(own.dtype)

        @tf.custom_gradient
        def replaced(x: Any) -> Any:
            found = tf.numpy_function(called, [number, x], x.dtype)
            return tf.ensure_shape(found, x.shape), tf.identity

        return replaced(tf.convert_to_tensor(tensor))

    def unwatched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = self._tf.autograph.experimental.do_not_convert(function)
        return found


class _Jax(_Engine):
    """How JAX shows a tensor to a function, in compiled code, too."""

    whole = False  # what a forward pass has changed is in the state that `train_step` returns

    def __init__(self) -> None:
        import jax

        self._jax, self.version, self.tensor = jax, jax.__version__, jax.Array
        self.tf32 = in_tf32("jax", jax, on_gpu=jax.default_backend() == "gpu")
        self.backward = (jax, "value_and_grad")
        if jax.process_count() > 1:  # no process has all of an array
            raise UsageError(
                f"{jax.process_count()} processes of jax.distributed train; allowed: one, of "
                "any number of devices"
            )
        self._depth, self._tap = 0, Tap()
        self.move = self._tap.move
        self.training = lambda: self._depth > 0

    def show(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        return self._tap.show(function, self._jax.lax.stop_gradient(tensors))

    def pass_on(self, tensor: Any, number: Any, function: Seen, move: Change) -> Any:
        if function is None:
            return tensor

        @self._jax.custom_vjp
        def identity(x: Any, number: Any) -> Any:
            return x

        def backward(number: Any, y: Any) -> tuple[Any, None]:
            self._tap.show(lambda arrays: function(*arrays), [number, y])
            return move(y), None

        identity.defvjp(lambda x, number: (x, number), backward)
        return identity(tensor, number)

    def differentiate(self, backward: Any, shown: Callable[[Any], None]) -> Any:
        def watched(function: Any, *arguments: Any, **named: Any) -> Any:
            def inside(*inputs: Any, **more: Any) -> Any:
                self._depth += 1
                try:
                    found = function(*inputs, **more)
                finally:
                    self._depth -= 1
                shown(found[0] if isinstance(found, tuple) else found)  # has_aux
                return found

            return backward(inside, *arguments, **named)

        return watched

    def finish(self) -> None:
        self._jax.effects_barrier()


class _PyTorch(_Engine):
    """How PyTorch shows a tensor to a function: at once, and its gradient by a hook."""

    def __init__(self) -> None:
        import torch

        self._torch, self.version, self.tensor = torch, torch.__version__, torch.Tensor
        self.tf32 = in_tf32("torch", torch, on_gpu=torch.cuda.is_available())
        self.training = torch.is_grad_enabled
        self.backward = (torch.Tensor, "backward")

    def move(self, tensor: Any, draw: Draw) -> Any:
        shares = self._torch.from_numpy(draw(tuple(tensor.shape)))
        return tensor + tensor.detach() * shares.to(tensor)

    def show(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        return function([self._array(each) for each in tensors])

    def _array(self, tensor: Any) -> np.ndarray:
        tensor = self._torch.as_tensor(tensor).detach()
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        array: np.ndarray = tensor.cpu().numpy()
        return array

    def pass_on(self, tensor: Any, number: Any, function: Seen, move: Change) -> Any:
        if function and tensor.requires_grad:
            tensor.register_hook(lambda y: function(number, self._array(y)))
            tensor.register_hook(move)
        return tensor


class LayerHooks(Hooks):
    """Functions around the layers' `call` and the optimiser, which hand on what they see.

    What a function around a `call` decides in a graph holds for all of its runs; so whether a
    step is recorded, and which call of it this is, is asked when the values are there.
    """

    def __init__(self, recording: Recording, engine: Any, model: Any, optimizer: Any):
        super().__init__(recording)
        self.recording = recording
        self._engine, self._model, self._optimizer = engine, model, optimizer
        self._open = self._stepped = False
        self._accumulated: dict[str, np.ndarray] = {}  # of the micro-batches of a step so far
        self._micro_batches = 0
        self.failure: UsageError | None = None

    def __enter__(self) -> "LayerHooks":
        model = self._model
        self._layers = _layers(model)
        for label, layer in (*self._layers, ("model", model)):
            self._replace(layer, "call", partial(self._watched_call, label))
        self._watch_optimizer()
        owner, name = self._engine.backward
        self._replace(owner, name, self._watched_backward)
        if not self._engine.whole:
            self._replace(model, "train_step", self._watched_train_step)
        # what `fit` has compiled before saw nothing, and what it compiles now must not stay
        model.train_function = None
        self._undo.callback(setattr, model, "train_function", None)
        self._open = True
        self._engine.within(lambda: self._begin(self._variables()))
        return self

    def _watch_optimizer(self) -> None:
        from keras.ops import convert_to_numpy

        optimizer, count = self._optimizer, _micro_batches(self._optimizer)
        if count > 1 and optimizer.built:  # the watch may begin between two micro-batches
            self._micro_batches = int(convert_to_numpy(optimizer._iterations)) % count
            sums = map(convert_to_numpy, optimizer._accumulated_gradients)
            names = map(self._name, optimizer._trainable_variables)
            self._accumulated = dict(zip(names, sums, strict=True))
        self._replace(self._optimizer, "apply", self._watched_apply)
        if self._engine.ranks is not None:
            self._replace(self._optimizer, "_all_reduce_sum_gradients", self._watched_reduction)
        elif any(
            getattr(self._optimizer, each, None) is not None
            for each in ("clipnorm", "clipvalue", "global_clipnorm")
        ):
            self._replace(self._optimizer, "_backend_update_step", self._watched_update)

    def _begin(self, variables: Iterable[Any]) -> None:
        """Record the weights before the first step, which are moved first if that is asked."""
        if self._to.perturbation:
            if self._engine.ranks is not None:
                raise UsageError("model is under a tf.distribute strategy; allowed: none")
            for each in variables:
                each.assign(self._moved(self._value(each)))
        if self._to.wants("initial"):
            self._show("initial", self._named(variables))

    def _variables(self) -> Iterable[Any]:
        found: Iterable[Any] = self._model.variables
        return found

    def _name(self, variable: Any) -> str:
        return str(variable.path)

    def _value(self, variable: Any) -> Any:
        return variable.value

    def _named(self, variables: Iterable[Any]) -> list[tuple[str, Any]]:
        return [(self._name(each), self._value(each)) for each in variables]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._engine.finish()
        finally:
            self._open = False
            self._undo.close()
        if kind is None and not self._engine.whole and not self._stepped:
            raise UsageError("no train_step of the model was seen; allowed on JAX: fit")

    def _move(self, tensor: Any, draw: Draw) -> Any:
        return self._engine.move(tensor, draw)

    def _show(self, rung: str, pairs: list[tuple[str, Any]], then: Any = None) -> None:
        """Record tensors by name when they have their values, and do something after it."""

        def seen(arrays: list[np.ndarray]) -> None:
            if not self._open or (rung in _ENDING and self._micro_batches):
                return
            self._add(rung, pairs, arrays)
            if then is not None:
                then()

        self._engine.show(seen, [each for _, each in pairs])

    def _add(self, rung: str, pairs: list[tuple[str, Any]], arrays: list[np.ndarray]) -> None:
        for (name, _), array in zip(pairs, arrays, strict=True):
            if self._to.wants(rung):
                self._to.add(rung, name, np.array(array))

    def _show_gradients(self, pairs: list[tuple[str, Any]]) -> None:
        """Record gradients; of a step with several micro-batches, with the last of them."""

        def seen(arrays: list[np.ndarray]) -> None:
            if not self._open:
                return
            count, sums = _micro_batches(self._optimizer), self._accumulated
            if count > 1:
                self._micro_batches = (self._micro_batches + 1) % count
                for (name, _), array in zip(pairs, arrays, strict=True):
                    sums[name] = sums.get(name, 0) + np.asarray(array)
                if self._micro_batches:
                    return
                arrays = [sums.pop(name) / count for name, _ in pairs]
            self._add("gradient", pairs, arrays)

        self._engine.show(seen, [each for _, each in pairs])

    def _watched_call(self, label: str, call: Any) -> Any:
        from keras import tree
        from keras.src.backend import get_keras_mask, set_keras_mask

        root = label == "model"

        def watched(*inputs: Any, **named: Any) -> Any:
            if not self._open or not self._engine.training():
                return call(*inputs, **named)
            self._seen.add(label)
            if root:
                given = leaves(
                    {**dict(enumerate(inputs)), **named}, (self._engine.tensor, np.ndarray)
                )
                self._batch([(path.removeprefix("/"), tensor) for path, tensor in given])
                inputs = mapped(inputs, self._engine.tensor, self._moved)
            output = call(*inputs, **named)
            found = list(leaves(output, self._engine.tensor))
            if not found:
                return output
            paths, moved = [path for path, _ in found], [self._moved(each) for _, each in found]
            number = self._engine.show(partial(self._output, label, paths), moved)
            passed = {}
            for (path, tensor), each in zip(found, moved, strict=True):
                differentiable = "float" in str(tensor.dtype)
                seen = partial(self._gradient, label, path) if differentiable else None
                move = self._moved
                if self._to.is_given:
                    find = [partial(self._given, rung, label, path) for rung in _REPLACED]
                    each = self._engine.given(each, number, find[0])
                    move = partial(self._engine.given, number=number, find=find[1])
                passed[id(tensor)] = self._engine.pass_on(each, number, seen, move)
                mask = get_keras_mask(tensor)
                if mask is not None and passed[id(tensor)] is not tensor:
                    set_keras_mask(passed[id(tensor)], mask)
            return tree.map_structure(lambda each: passed.get(id(each), each), output)

        return self._engine.unwatched(watched)

    def _batch(self, pairs: list[tuple[str, Any]]) -> None:
        def seen(arrays: list[np.ndarray]) -> None:
            if self._open and self._to.wants("batch"):
                call = self._to.call("batch/").removeprefix("batch/")
                for (name, _), array in zip(pairs, arrays, strict=True):
                    self._to.add("batch", name + call, np.array(array))

        self._engine.show(seen, [each for _, each in pairs])

    def _output(self, label: str, paths: list[str], arrays: list[np.ndarray]) -> int:
        """Record what a layer returned, and return which call of it in the step this was."""
        if not self._open or not self._to.active:
            return 0
        call = self._to.call(label)
        for path, array in zip(paths, arrays, strict=True):
            if self._to.wants("forward", label):
                self._to.add("forward", call + path, np.array(array))
        return int(call.rpartition("#")[2]) if call != label else 0

    def _gradient(self, label: str, path: str, number: Any, array: np.ndarray) -> None:
        if self._open and self._to.wants("activation_gradient", label):
            call = f"{label}#{number}" if number else label
            self._to.add("activation_gradient", call + path, np.array(array))

    def _given(self, rung: str, label: str, path: str, number: int) -> np.ndarray | None:
        call = f"{label}#{number}" if number else label
        return self._to.given(rung, call + path) if self._open and self._to.active else None

    def _watched_backward(self, backward: Any) -> Any:
        def shown(target: Any) -> None:
            if self._open and self._engine.here():
                found = leaves(target, self._engine.tensor)
                self._show("loss", [("loss", each) for _, each in found])

        return self._engine.differentiate(backward, shown)

    def _watched_update(self, update: Any) -> Any:
        def watched(gradients: Any, variables: Any, *rest: Any) -> Any:
            pairs = zip(variables, gradients, strict=True)
            self._show("clipped_gradient", [(self._name(v), y) for v, y in pairs])
            return update(gradients, variables, *rest)

        return watched

    def _watched_reduction(self, reduction: Any) -> Any:
        def watched(pairs: Any) -> Any:
            found = reduction(pairs)
            if self._engine.here():
                names = {
                    id(self._value(v)): self._name(v)
                    for v in self._optimizer._trainable_variables
                }
                known = [(names[id(v)], y) for y, v in found if y is not None]
                self._show("clipped_gradient", known)
            return found

        return watched

    def _watched_apply(self, apply: Any) -> Any:
        def watched(gradients: Any, trainable_variables: Any = None) -> Any:
            if not self._engine.here():
                return apply(gradients, trainable_variables)
            gradients = list(gradients)
            if trainable_variables is None:
                variables = self._optimizer._trainable_variables
            else:
                variables = trainable_variables = list(trainable_variables)
            self._check_seen()
            pairs = zip(variables, gradients, strict=True)
            found = [(self._name(v), y) for v, y in pairs if y is not None]
            self._show_gradients(found)
            result = apply(gradients, trainable_variables)
            kept = kept_by(self._optimizer, variables, self._name)
            values = {name: each.value for name, each in kept}
            if _micro_batches(self._optimizer) > 1:  # counted are steps, not what is applied
                values["model/iteration"] = self._optimizer.iterations
            self._show("optimizer", list(values.items()))
            if self._engine.whole:
                weights = {id(each): each for each in (*self._variables(), *variables)}
                self._show("weight", self._named(weights.values()), self._end_step)
            return result

        return self._engine.unwatched(watched)

    def _watched_train_step(self, step: Any) -> Any:
        def watched(state: Any, data: Any) -> Any:
            logs, after = step(state, data)
            self._stepped = True
            model = self._model
            variables = *model.trainable_variables, *model.non_trainable_variables
            held = zip(variables, (*after[0], *after[1]), strict=True)
            self._show("weight", [(each.path, value) for each, value in held], self._end_step)
            return logs, after

        return watched

    def cause(self, error: Exception) -> UsageError | None:
        """Return what made TensorFlow fail, which hands on the text of an error alone."""
        hidden = "PyFunc" in str(error) and "XLA" in str(error)
        return UsageError(COMPILED) if hidden and self.failure is None else self.failure

    def _end_step(self) -> None:
        try:
            self._to.end_step()
        except UsageError as error:
            self.failure = error
            raise

    def _check_seen(self) -> None:
        """Say, when the first step is computed or traced, which layers were never called."""
        if self._open and not self._to.began and self._to.wants("forward"):
            self._check_called(
                [label for label, layer in self._layers if not getattr(layer, "_layers", ())],
                "no layer of the model was called under a gradient tape; allowed: the model "
                "that the loop trains, watched before a tf.function of it is first called",
            )
