"""Records a plain TensorFlow training: `watch` around a loop with `tf.GradientTape`."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.weights import check_kept, read_weights
from parity.base.errors import UsageError
from parity.keras import LayerHooks, TensorFlow, recorded, rules_of
from parity.watch import sessions
from parity.watch.modules import described, plain
from parity.watch.recording import Recording

Named = dict[str, Any]


@contextmanager
def watch(
    folder: str | Path,
    model: Any,
    optimizer: Any = None,
    *,
    tensors: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Recording]:
    """Record every step of a training, eager, in a `tf.function` or by a session of 1.x.

        with parity.tensorflow.watch("out/port", model, optimizer):
            train(model, optimizer, data)

    What is recorded, and the options, are those of `parity.torch.watch`. A step ends when the
    optimiser is applied; without one, where the next `tf.GradientTape` begins, or the watch
    ends. `gradient` is then what `tape.gradient` returned.

    Args:
      folder: where the trace is written; one that is there is replaced.
      model: the `tf.Module`, or name -> `tf.Variable`. Variables and modules are named by the
        attributes that lead to them: `layers.0.kernel`. Of a 1.x training the `tf.Graph`: a
        step is a run of a session in which a variable is updated.
      optimizer: the `tf.keras.optimizers.Optimizer`. For a rule of one's own: name -> variable
        of what it keeps, such as `kernel/momentum`; None: it keeps nothing.
      tensors: of a `tf.Graph`, what is recorded beside gradients and variables: name in the
        trace, such as `forward/hidden` or `loss/loss` -> tensor, or its name in the graph.
      **options: those of `parity.watch.recording.Recording`.

    Raises:
      UsageError: for a model that cannot be watched, or an option that is not allowed.
    """
    import tensorflow as tf

    if isinstance(model, tf.Graph):
        with _of_a_graph(folder, model, tensors or {}, options) as recording:
            yield recording
        return
    if tensors is not None:
        raise UsageError(
            f"tensors is given, and model is {type(model).__name__}; allowed: a tf.Graph"
        )
    engine = TensorFlow()
    if isinstance(model, tf.Module):  # a keras.Model is none
        variables, modules = _held(model, tf.Variable), _held(model, tf.Module)
    else:
        variables, modules = _checked("model", model, tf.Variable), {}
    rule = isinstance(optimizer, tf.keras.optimizers.Optimizer)
    slots = {} if rule or optimizer is None else _checked("optimizer", optimizer, tf.Variable)
    first = next(iter(variables.values()), None)
    strategy = getattr(first, "distribute_strategy", None)
    if strategy is not None and not rule:
        raise UsageError(
            "model is under a tf.distribute strategy; allowed with an optimizer of Keras"
        )
    trained = {name: each for name, each in variables.items() if each.trainable}
    facts = {
        "tf32": engine.tf32,
        "loss": "mean" if strategy is None else "sum",  # the ranks' own
        "modules": described(
            [("model", model), *modules.items()] if isinstance(model, tf.Module) else [],
            "tensorflow",
            lambda module: (e for e in vars(module).items() if isinstance(e[1], tf.Variable)),
            {id(each): name for name, each in variables.items()},
        ),
        "optimizer": {"kind": "", "settings": {}},
        **(rules_of(optimizer, trained) if rule else {}),
    }
    kinds = {each.dtype.name for each in variables.values()}
    versions = {"tensorflow": engine.version}

    def hooks_of(engine: Any) -> _Hooks:
        given = {**options, "ranks": engine.ranks or options.get("ranks")}
        recording = Recording(folder, "tensorflow", kinds, versions, facts, **given)
        hooks = _Hooks(recording, engine, model, optimizer if rule else None)
        hooks.variables, hooks.modules, hooks.slots = variables, modules, slots
        return hooks

    with recorded(map(hooks_of, engine.replicas(strategy))) as recording:
        yield recording


def load(model: Any, file: str | Path) -> None:
    """Give a model the weights of a file that `parity weights` wrote; see `parity.torch.load`.

    Args:
      model: what `watch` takes. The variables of a `tf.Graph` are those of the session that
        `with` made the default one.

    Raises:
      UsageError: as `parity.torch.load` does.
    """
    import tensorflow as tf

    session = None
    if isinstance(model, tf.Graph):
        variables = sessions.Graph(model, {}).weights
        session = tf.compat.v1.get_default_session()
        if session is None or session.graph is not model:
            raise UsageError("no session of the graph is open; allowed: with tf1.Session()")
    elif isinstance(model, tf.Module):
        variables = _held(model, tf.Variable)
    else:
        variables = _checked("model", model, tf.Variable)
    shapes = {name: tuple(each.shape) for name, each in variables.items()}
    optional = {name for name, each in variables.items() if not each.trainable}
    given = read_weights(file, shapes, optional, None)
    for name, array in given.weights.items():
        variable = variables[name]
        if session is None:
            variable.assign(array)
            kept = variable.numpy()
        else:
            start = variable.initializer  # an assignment, whose value is fed
            session.run(start, {start.inputs[1]: array})
            kept = session.run(variable)
        check_kept(file, name, array, np.asarray(kept, np.float64))


@contextmanager
def _of_a_graph(
    folder: str | Path, graph: Any, tensors: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[Recording]:
    import tensorflow as tf

    seen = sessions.Graph(graph, tensors)
    kind, settings = seen.rule
    facts = {"modules": [], "optimizer": {"kind": kind, "settings": plain(settings)}}
    kinds = {each.dtype.base_dtype.name for each in seen.weights.values()}
    versions = {"tensorflow": tf.__version__}
    recording = Recording(folder, "tensorflow", kinds, versions, facts, **options)
    with recording, sessions.Fetches(recording, seen):
        yield recording


def _held(model: Any, kind: type) -> Named:
    """Return name -> what a module and those below it hold of a kind."""
    found = model._flatten(predicate=lambda each: isinstance(each, kind), with_path=True)
    return {".".join(map(str, path)): each for path, each in found if each is not model}


def _checked(name: str, values: Any, kind: type) -> Named:
    named = isinstance(values, Mapping) and all(isinstance(each, str) for each in values)
    if named and values and all(isinstance(each, kind) for each in values.values()):
        return dict(values)
    more = (
        "a tf.Module, or name -> tf.Variable; parity.keras watches a keras.Model"
        if name == "model"
        else "a tf.keras.optimizers.Optimizer, name -> tf.Variable, or None"
    )
    raise UsageError(f"{name} is {type(values).__name__}; allowed: {more}")


class _Hooks(LayerHooks):
    """Those of Keras, for variables and modules that are known by the way that leads to them.

    Attributes:
      variables, modules: name -> variable, or module, of the model.
      slots: name -> variable, of what a rule of the user's own keeps.
    """

    variables: Named
    modules: Named
    slots: Named

    def __enter__(self) -> "_Hooks":
        self._names = {id(each): name for name, each in self.variables.items()}
        self._layers = [each for each in self.modules.items() if callable(each[1])]
        # whether a gradient was computed and the step that it belongs to has not ended
        self._pending = False
        called = [*self._layers, *([("model", self._model)] if callable(self._model) else [])]
        self._watch_calls({id(module): label for label, module in called}, dict(called))
        tape, name = self._engine.backward
        self._replace(tape, name, self._watched_backward)
        if self._optimizer is None:
            self._replace(tape, "__enter__", self._watched_tape)
        else:
            self._watch_optimizer()
        self._open = True
        if not called:
            warnings.warn(
                "the model is not called: what it was given, and outputs, are not recorded",
                stacklevel=9,
            )
        self._begin(self._variables())
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and self._optimizer is None:
            self._end_pending()
        super().__exit__(kind, *rest)

    def _watch_calls(self, labels: Mapping[int, str], modules: Named) -> None:
        """Put functions around `__call__` of the modules' classes: Python looks there."""
        owners: dict[type, set[int]] = {}
        for module in modules.values():
            owner = next(each for each in type(module).__mro__ if "__call__" in vars(each))
            owners.setdefault(owner, set()).add(id(module))
        for owner, known in owners.items():
            self._replace(owner, "__call__", partial(self._watched_class, labels, known))

    def _watched_class(self, labels: Mapping[int, str], known: set[int], call: Any) -> Any:
        from tensorflow.python.autograph.core.ag_ctx import _control_ctx
        from tensorflow.python.autograph.impl.api import tf_convert

        def watched(module: Any, *inputs: Any, **named: Any) -> Any:
            # the user's code stays AutoGraph's to convert, as it was where this was called
            bound = tf_convert(call.__get__(module, type(module)), _control_ctx()[-2])
            if id(module) in known:
                bound = self._watched_call(labels[id(module)], bound)
            return bound(*inputs, **named)

        return self._engine.unwatched(watched)

    def _watched_tape(self, enter: Any) -> Any:
        def watched(tape: Any) -> Any:
            if self._open:
                self._end_pending()
            return enter(tape)

        return self._engine.unwatched(watched)

    def _watched_backward(self, backward: Any) -> Any:
        seen = super()._watched_backward(backward)
        flatten = self._engine.flatten

        def watched(tape: Any, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
            gradients = seen(tape, target, sources, *rest, **named)
            if self._open and self._optimizer is None:
                self._check_seen()
                pairs = zip(flatten(sources), flatten(gradients), strict=True)
                known = [(v, y) for v, y in pairs if y is not None and id(v) in self._names]
                found = [(self._name(v), y) for v, y in known]
                self._show("gradient", found, self._computed)
            return gradients

        return self._engine.unwatched(watched)

    def _computed(self) -> None:
        self._pending = True

    def _end_pending(self) -> None:
        """Record the state and the weights of a step whose gradients were seen, and end it."""
        state = list(self.slots.items())
        weights = self._named(self._variables())

        def seen(arrays: list[Any]) -> None:
            if not self._pending:
                return
            self._pending = False
            self._add("optimizer", state, arrays[: len(state)])
            self._add("weight", weights, arrays[len(state) :])
            self._end_step()

        self._engine.show(seen, [each for _, each in (*state, *weights)])

    def _check_seen(self) -> None:
        if self._layers or callable(self._model):
            super()._check_seen()

    def _variables(self) -> Iterable[Any]:
        return self.variables.values()

    def _name(self, variable: Any) -> str:
        return self._names.get(id(variable), str(variable.name).partition(":")[0])

    def _value(self, variable: Any) -> Any:
        return variable
