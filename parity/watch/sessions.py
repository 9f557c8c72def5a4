"""Records what a session of TensorFlow 1.x computes of its graph, by fetching it as well."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.rungs import RUNGS
from parity.watch.recording import Recording

_UPDATES = ("Apply", "ResourceApply")  # how the types of operations that update begin
_GRADIENTS = ("grad", "delta")  # what they call the gradient
_SETTINGS = {"alpha": "lr"}  # what plain descent calls the rate


class Graph:
    """What is fetched of a graph, into which an optimizer was built.

    Args:
      graph: the `tf.Graph`.
      tensors: name in the trace, such as forward/hidden -> a tensor of the graph, or its name.

    Attributes:
      weights, slots: name in the trace -> variable.
      tensors: name in the trace -> tensor; gradients are those that updates read.
      rule: (kind, settings) of the optimizer, as far as the graph says it.

    Raises:
      UsageError: for a graph that updates no variable, or a tensor that it does not hold.
    """

    def __init__(self, graph: Any, tensors: Mapping[str, Any]):
        import tensorflow as tf

        self.graph, self.tensors = graph, {}
        for name, each in tensors.items():
            if name.partition("/")[0] not in RUNGS or not name.partition("/")[2]:
                raise UsageError(
                    f"tensors holds {name!r}; allowed: RUNG/NAME, such as forward/hidden"
                )
            try:
                self.tensors[name] = graph.as_graph_element(each, allow_operation=False)
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"tensors[{name!r}] is {each!r}; allowed: a tensor of the graph, its name"
                ) from error
        known = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        variables = {getattr(each, "handle", each).op: each for each in known}
        self.updates = [
            each
            for each in graph.get_operations()
            if each.type.startswith(_UPDATES) and each.inputs[0].op in variables
        ]
        if not self.updates:
            raise UsageError(
                "the graph updates no variable by a dense gradient; allowed: one after "
                "optimizer.minimize(loss)"
            )
        self.slots: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for update in self.updates:
            roles = [each.name for each in update.op_def.input_arg]
            name = update.inputs[0].op.name
            for role, tensor in zip(roles[1:], list(update.inputs)[1:], strict=True):
                if role in _GRADIENTS:
                    self.tensors[f"gradient/{name}"] = tensor
                elif tensor.op in variables:
                    self.slots[f"{name}/{role}"] = variables[tensor.op]
                elif (read := _read(tensor.op)) in variables:
                    # one for all, such as a power of beta1
                    self.slots[f"model/{role}"] = variables[read]
                elif (value := tf.get_static_value(tensor)) is not None:
                    settings[_SETTINGS.get(role, role)] = value.item()
        steps = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_STEP)
        found = {op.name: each for op, each in variables.items()}
        # an update by a sparse gradient is many operations; its slots are called alike
        ends = {
            each.op.name.removeprefix(name.rpartition("/")[0]): name.rpartition("/")[2]
            for name, each in self.slots.items()
        }
        for name, each in found.items():
            for end, role in ends.items():
                if name.endswith(end) and name.removesuffix(end) in found:
                    self.slots.setdefault(f"{name.removesuffix(end)}/{role}", each)
        kept = {id(each) for each in (*self.slots.values(), *steps)}
        self.weights = {name: each for name, each in found.items() if id(each) not in kept}
        kind = self.updates[0].type
        self.rule = kind[kind.index("Apply") + len("Apply") :], settings

    def trains(self, fetches: Iterable[Any]) -> bool:
        """Return whether what is fetched has a variable updated."""
        named = [self.graph.as_graph_element(e) if isinstance(e, str) else e for e in fetches]
        open_, seen = [getattr(each, "op", each) for each in named], set[Any]()
        while open_:
            op = open_.pop()
            if op in self.updates:
                return True
            if op not in seen:
                seen.add(op)
                open_ += [*(each.op for each in op.inputs), *op.control_inputs]
        return False


class Fetches:
    """Around the `run` of sessions: fetches what is recorded with each step."""

    def __init__(self, recording: Recording, graph: Graph):
        from tensorflow.python.client.session import BaseSession

        if recording.perturbation is not None or recording.is_given:
            raise UsageError("the numbers of a session cannot be changed; allowed: tf.function")
        self._to, self._graph, self._session = recording, graph, BaseSession

    def __enter__(self) -> None:
        self._run = self._session.run
        self._session.run = self._watched(self._run)

    def __exit__(self, *exception: object) -> None:
        self._session.run = self._run

    def _watched(self, run: Any) -> Any:
        def watched(
            session: Any, fetches: Any, feed_dict: Any = None, *rest: Any, **named: Any
        ) -> Any:
            graph = self._graph
            if session.graph is not graph.graph or not graph.trains(_leaves(fetches)):
                return run(session, fetches, feed_dict, *rest, **named)
            if not self._to.step:
                self._variables("initial", graph.weights, session)
            wanted = {n: t for n, t in graph.tensors.items() if self._to.wants(_rung(n))}
            both = {"own": fetches, "seen": wanted}
            found = run(session, both, feed_dict, *rest, **named)
            if self._to.wants("batch"):
                for key, value in (feed_dict or {}).items():
                    element = graph.graph.as_graph_element(key)
                    self._to.add("batch", element.op.name, np.array(value))
            for name, array in found["seen"].items():
                self._to.add(_rung(name), name.partition("/")[2], array)
            self._variables("optimizer", graph.slots, session)
            self._variables("weight", graph.weights, session)
            self._to.end_step()
            return found["own"]

        return watched

    def _variables(self, rung: str, variables: Mapping[str, Any], session: Any) -> None:
        if self._to.wants(rung):
            for name, array in self._run(session, dict(variables)).items():
                self._to.add(rung, name, array)


def _read(op: Any) -> Any:
    """Return the variable's operation, if what follows it hands its value on."""
    while len(op.inputs) == 1:
        op = op.inputs[0].op
    return op


def _rung(name: str) -> str:
    return name.partition("/")[0]


def _leaves(fetches: Any) -> Iterator[Any]:
    """Yield the tensors, operations and names in what a session is asked for."""
    if isinstance(fetches, Mapping):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for each in fetches:
            yield from _leaves(each)
    elif fetches is not None:
        yield fetches
