"""What is put around a framework's own functions while a training is watched."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.pair.perturbation import Draw, mapped
from parity.watch.recording import Recording, leaves


class Hooks(ABC):
    """What hands a training's tensors to a recording, until the watch ends."""

    def __init__(self, recording: Recording):
        self._to, self._undo = recording, ExitStack()
        self._seen = set[str]()  # the modules that were called

    @abstractmethod
    def _move(self, tensor: Any, draw: Draw) -> Any:
        """Return a tensor that is larger or smaller by drawn shares of itself."""

    def _moved(self, tensor: Any) -> Any:
        """Return a tensor whose numbers are moved, if `parity bounds` asks for it."""
        draw = self._to.perturbation and self._to.perturbation.of(tensor.dtype)
        return self._move(tensor, draw) if draw else tensor

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Put a function around another until the watch ends."""
        own, watched = vars(owner).get(name), wrap(getattr(owner, name))
        if not isinstance(owner, type):
            # past `__setattr__`, with which Keras tracks what a layer holds
            vars(owner)[name] = watched
            undo = vars(owner).pop if own is None else vars(owner).__setitem__
            self._undo.callback(undo, name, own)
            return
        setattr(owner, name, watched)
        if own is None:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, own)

    def _check_called(self, innermost: Iterable[str], nothing: str, start: str = "") -> None:
        """Say of which modules no call was seen.

        Args:
          innermost: the modules that hold no others.
          nothing: the message if no module was called.
          start: what the other message begins with.

        Raises:
          UsageError: if no module was called.
        """
        if not self._seen:
            raise UsageError(nothing)
        hidden = [name for name in innermost if name not in self._seen]
        if hidden:
            warnings.warn(
                f"{start}{', '.join(hidden)}: not called, so their outputs are not recorded; "
                "their weights are",
                stacklevel=5,
            )


class ModuleHooks(Hooks):
    """Hooks on the modules of a framework that computes at once: PyTorch and Paddle.

    Args:
      tensor: the class of the framework's tensors.
      parameters, buffers: name -> tensor, of the model.
    """

    def __init__(
        self,
        recording: Recording,
        tensor: type,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
    ):
        super().__init__(recording)
        self._tensor = tensor
        self._parameters, self._buffers = dict(parameters), dict(buffers)
        # of this forward pass: those that are moved, by their identity, and of which module
        self._outputs: dict[int, tuple[Any, str]] = {}

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    @abstractmethod
    def _counts(self) -> bool:
        """Return whether a module runs in a training's forward pass, and for the first time."""

    @abstractmethod
    def _copy(self, tensor: Any) -> np.ndarray:
        """Return a tensor's values as they are now; half precision becomes float32."""

    @abstractmethod
    def _like(self, array: np.ndarray, tensor: Any) -> Any:
        """Return an array as a tensor of another one's type, where that one is."""

    @abstractmethod
    def _has_gradient(self, tensor: Any) -> bool:
        """Return whether the loss is differentiated by a tensor."""

    @abstractmethod
    def _filled(self, tensor: Any, array: np.ndarray) -> Any:
        """Return a tensor with other values, whose gradient is still that tensor's."""

    def _unwatched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that no compiler looks into."""
        return function

    def _move(self, tensor: Any, draw: Draw) -> Any:
        return tensor + tensor.detach() * self._like(draw(tuple(tensor.shape)), tensor)

    def _moved_in(self, inputs: Any) -> Any:
        """Return what the model is given, with its numbers moved; None to leave it."""
        self._outputs.clear()
        moves = self._to.perturbation is not None
        return mapped(inputs, self._tensor, self._moved) if moves else None

    def _is_moved(self, label: str, output: Any) -> bool:
        """Return whether a module returns what one within it did, which is moved already."""
        _, of = self._outputs.get(id(output), (None, ""))
        return of.startswith(f"{label}.") or (label == "model" and bool(of))

    def _moved_output(self, label: str, output: Any) -> Any:
        if self._is_moved(label, output):
            return output
        moved = self._moved(output)
        self._outputs[id(moved)] = moved, label
        return moved

    def _weights(self, rung: str, array_of: Callable[[Any], np.ndarray]) -> None:
        """Record the parameters and buffers."""
        if self._to.wants(rung):
            for name, each in {**self._parameters, **self._buffers}.items():
                self._to.add(rung, name, array_of(each))

    def _batch(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Record what the model was given."""
        call = self._to.call("batch/").removeprefix("batch/")
        for path, tensor in leaves({**dict(enumerate(inputs)), **named}, self._tensor):
            self._to.add("batch", path.removeprefix("/") + call, self._copy(tensor))

    def _output(self, label: str) -> Callable[..., Any]:
        """Return a hook that records what a module returns, and the gradients of that."""

        def seen(module: Any, inputs: Any, output: Any) -> Any:
            if not self._counts():
                return None
            self._seen.add(label)
            moved = None
            if self._to.perturbation is not None:
                moved = mapped(output, self._tensor, partial(self._moved_output, label))
            forward = self._to.wants("forward", label)
            backward = self._to.wants("activation_gradient", label)
            if not forward and not backward and moved is None:
                return None
            call, new = self._to.call(label), {}
            output = output if moved is None else moved
            for path, tensor in leaves(output, self._tensor):
                if forward:
                    self._to.add("forward", call + path, self._copy(tensor))
                passed = new[id(tensor)] = self._given(tensor, call + path)
                if not self._has_gradient(passed):
                    continue
                if backward:
                    passed.register_hook(self._gradient(call + path, self._to.step))
                if moved is not None and not self._is_moved(label, tensor):
                    passed.register_hook(self._unwatched(self._moved))
            if self._to.is_given:
                return mapped(output, self._tensor, lambda each: new[id(each)])
            return moved

        return self._unwatched(seen)

    def _gradient(self, name: str, step: int) -> Callable[[Any], Any]:
        def seen(gradient: Any) -> Any:
            # cuDNN gives an output that nothing used no gradient, not one of zeros
            if gradient is None or not self._to.active or self._to.step != step:
                return None
            self._to.add("activation_gradient", name, self._copy(gradient))
            given = self._to.given("activation_gradient", name)
            return None if given is None else self._like(given, gradient)

        return self._unwatched(seen)

    def _given(self, tensor: Any, name: str) -> Any:
        """Return a module's output with the values that it is given, if there are any."""
        given = self._to.given("forward", name)
        return tensor if given is None else self._filled(tensor, given)
