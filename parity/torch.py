"""Records a PyTorch training while it runs: `watch` around a loop that stays as it is."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from parity.align.optimizer_state import slots_of
from parity.align.precision import in_tf32
from parity.align.weights import check_kept, read_weights
from parity.base.errors import UsageError
from parity.watch.hooks import ModuleHooks
from parity.watch.modules import described, plain
from parity.watch.recording import Recording, leaves


@contextmanager
def watch(
    folder: str | Path, model: Any, optimizer: Any, **options: Any
) -> Iterator[Recording]:
    """Record every step of a training, which ends with the optimiser's step.

        with parity.torch.watch("out/original", model, optimizer):
            train(model, optimizer, data)

    Recorded are: what the model was given (`batch`), the weights before the first step
    (`initial`), every module's output (`forward`), the tensor on which `backward` is called
    (`loss`), the gradients of outputs and parameters, the optimiser's state and the weights.
    What the loop does to the gradients between backward and step (clipping, unscaling) is
    `clipped_gradient`. A forward pass without gradients (an evaluation) is left out.

    Args:
      folder: where the trace is written; one that is there is replaced.
      model: the `torch.nn.Module`.
      optimizer: the optimiser, or several, of which the last one's step ends a step.
      **options: those of `parity.watch.recording.Recording`: `run`, `names`, `tolerances`,
        `steps`, `modules`, `rungs`, `detail`, `side`, `ranks`.

    Raises:
      UsageError: for a model that cannot be watched, or an option that is not allowed.
    """
    import torch

    optimizers = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(f"optimizer is {each!r}; allowed: a torch.optim.Optimizer")
    _check_model(model)
    names = {id(each): name for name, each in _named(model, model.named_parameters())}
    groups = [
        {
            "kind": type(each).__name__,
            "settings": plain(group),
            "parameters": [names[id(p)] for p in group["params"] if id(p) in names],
        }
        for each in optimizers
        for group in each.param_groups
    ]
    last = groups[-len(optimizers[-1].param_groups)]
    device = str(next((each.device for each in model.parameters()), "none"))
    facts = {
        "device": device,
        "threads": torch.get_num_threads(),
        "seed": torch.initial_seed(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": in_tf32("torch", torch, on_gpu=device.startswith("cuda")),
        "buffers": [name for name, _ in _named(model, model.named_buffers())],
        "modules": _modules(model),
        "optimizer": {"kind": last["kind"], "settings": last["settings"]},
        "optimizers": groups if len(groups) > 1 else [],
    }
    kinds = {str(each.dtype).removeprefix("torch.") for each in model.parameters()}
    versions = {"torch": torch.__version__}
    options = {"ranks": ranks(), **options}
    recording = Recording(folder, "pytorch", kinds, versions, facts, **options)
    with recording, _Hooks(recording, model, optimizers):
        yield recording


def ranks() -> tuple[int, int]:
    """Return which rank this process is in `torch.distributed`, and of how many."""
    import torch.distributed as group

    if not group.is_available() or not group.is_initialized():
        return 0, 1
    return group.get_rank(), group.get_world_size()


def load(model: Any, file: str | Path, optimizer: Any = None) -> None:
    """Give a model the weights of a file that `parity weights` wrote.

    Args:
      optimizer: what the file's state of an optimiser is given to, if it has one.

    Raises:
      UsageError: for a file that cannot be read, is of another model or kind of optimiser, or
        holds what the types of the model cannot.
    """
    import torch

    parameters = dict(_named(model, model.named_parameters()))
    buffers = dict(_named(model, model.named_buffers()))
    tensors = {**buffers, **parameters}
    shapes = {name: tuple(each.shape) for name, each in tensors.items()}
    slots = None if optimizer is None else slots_of("torch", type(optimizer).__name__)
    given = read_weights(file, shapes, set(buffers), slots)

    def take(tensor: Any, name: str, array: np.ndarray) -> None:
        tensor.copy_(torch.from_numpy(array))
        kept = tensor.detach().cpu()
        kept = kept.double() if kept.is_floating_point() else kept
        check_kept(file, name, array, kept.numpy())

    with torch.no_grad():
        for name, array in given.weights.items():
            take(tensors[name], name, array)
        for (name, slot), array in given.state.items():
            held = optimizer.state[parameters[name]]
            held[slot] = torch.zeros_like(parameters[name])
            take(held[slot], name, array)
            if slot != "momentum_buffer":  # SGD counts no steps
                held["step"] = torch.tensor(float(given.steps))


def _check_model(model: Any) -> None:
    """Refuse what has no hooks."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model is {type(model).__name__}; allowed: a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(
                f"module {name!r} is a ScriptModule, which has no hooks; allowed: the module "
                "that it was made from"
            )


def _modules(model: Any) -> list[dict[str, Any]]:
    """Return what the modules of a model are, for the header."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return described(
        ((name or "model", module) for name, module in _named(model, model.named_modules())),
        "torch",
        lambda module: (*module._parameters.items(), *module._buffers.items()),
        {id(each): name for name, each in _named(model, tensors)},
    )


class _Hooks(ModuleHooks):
    """Hooks on a model and its optimisers.

    A copy is made where a later operation may change a tensor in place.
    """

    def __init__(self, recording: Recording, model: Any, optimizers: Sequence[Any]):
        import torch

        super().__init__(
            recording,
            torch.Tensor,
            dict(_named(model, model.named_parameters())),
            dict(_named(model, model.named_buffers())),
        )
        self._torch, self._model, self._optimizers = torch, model, optimizers
        self._modules = dict(_named(model, model.named_modules()))
        known = {id(each) for each in self._parameters.values()}
        for number, optimizer in enumerate(optimizers):
            for i, group in enumerate(optimizer.param_groups):
                for j, each in enumerate(group["params"]):
                    if id(each) not in known:  # of no module: named for its place
                        self._parameters[f"optimizer{number}.{i}.{j}"] = each
        self._names = {id(each): name for name, each in self._parameters.items()}
        self._training = False
        self._kept: dict[str, np.ndarray] = {}  # parameter -> its gradient
        # the call of `step` that is under way: a subclass may call that of its base
        self._outermost: FrameType | None = None

    def __enter__(self) -> "_Hooks":
        torch, root, off = self._torch, self._model, self._unwatched
        for name, module in self._modules.items():
            self._hook(module.register_forward_hook(self._output(name or "model")))
        self._hook(
            root.register_forward_pre_hook(off(self._begin), with_kwargs=True, prepend=True)
        )
        self._hook(root.register_forward_hook(off(self._end), always_call=True))
        for each in self._optimizers:
            self._hook(each.register_step_pre_hook(self._before_step))
            self._hook(each.register_step_post_hook(self._after_step))
        self._replace(torch.autograd, "backward", self._watched_backward)
        if self._to.perturbation:
            with torch.no_grad():
                for each in (*self._parameters.values(), *self._buffers.values()):
                    each.copy_(self._moved(each))
        self._weights("initial", self._copy)
        return self

    def _hook(self, handle: Any) -> None:
        self._undo.callback(handle.remove)

    def _unwatched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = self._torch.compiler.disable(function)
        return found

    def _copy(self, tensor: Any) -> np.ndarray:
        return np.array(self._array(tensor))

    def _array(self, tensor: Any) -> np.ndarray:
        """Return a tensor's values, which it may share; half precision becomes float32."""
        if self._torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise UsageError(
                "a transform of torch.func hides what the model computes; allowed: gradients "
                "by backward or torch.autograd.grad"
            )
        tensor = tensor.detach()
        if hasattr(tensor, "full_tensor"):  # of a DTensor each rank has a part
            tensor = tensor.full_tensor()
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        array: np.ndarray = tensor.cpu().resolve_conj().resolve_neg().numpy()
        return array

    def _like(self, array: np.ndarray, tensor: Any) -> Any:
        return self._torch.from_numpy(array).to(tensor)

    def _has_gradient(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def _filled(self, tensor: Any, array: np.ndarray) -> Any:
        tensor = tensor.clone()
        tensor.data.copy_(self._torch.from_numpy(array))
        return tensor

    def _counts(self) -> bool:
        # activation checkpointing runs modules again during the backward pass
        if self._torch._C._current_graph_task_id() != -1:
            return False
        if not self._to.active and self._to.perturbation is None:
            return False
        return self._training or self._torch.is_grad_enabled()

    def _begin(self, module: Any, inputs: Any, named: Any) -> Any:
        if self._torch._C._current_graph_task_id() != -1:
            return None
        self._training = self._torch.is_grad_enabled()
        if self._training and self._to.wants("batch"):
            self._batch(inputs, named)
        return self._moved_in((inputs, named)) if self._training else None

    def _end(self, *_: Any) -> None:
        if self._torch._C._current_graph_task_id() == -1:
            self._training = False

    def _watched_backward(self, backward: Any) -> Any:
        def watched(tensors: Any, *arguments: Any, **named: Any) -> Any:
            outermost = self._torch._C._current_graph_task_id() == -1
            if outermost and self._to.wants("loss"):
                for _, tensor in leaves(tensors, self._torch.Tensor):
                    self._to.add("loss", "loss", self._copy(tensor))
            result = backward(tensors, *arguments, **named)
            if outermost and self._to.wants("gradient"):
                self._gradients()
            return result

        return watched

    def _gradients(self) -> None:
        """Keep the gradients that the micro-batches so far have summed."""
        for name, each in self._parameters.items():
            if each.grad is not None:
                self._kept[name] = self._copy(each.grad)
                self._to.add("gradient", name, self._kept[name], replace=True)

    def _clipped_gradients(self) -> None:
        """Keep the gradients that the loop has changed since then."""
        for name, each in self._parameters.items():
            if each.grad is None:
                continue
            now, kept = self._array(each.grad), self._kept.get(name)
            # a change of its `data` leaves the gradient's version as it was
            if kept is None or not np.array_equal(now, kept, equal_nan=True):
                self._to.add("clipped_gradient", name, np.array(now), replace=True)

    def _before_step(self, optimizer: Any, inputs: Any, named: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        caller = frame
        while frame is not None and frame is not self._outermost:
            frame = frame.f_back
        if frame is not None:  # a subclass calls the step of its base
            return None
        self._outermost = caller
        if not self._to.active:
            return None
        closure = named.get("closure") or next(filter(callable, inputs[1:]), None)
        if closure is None:
            self._before_update()
            return None

        def watched() -> Any:  # it computes the gradients, and may clip them
            loss = closure()
            self._before_update()
            return loss

        given = tuple(watched if each is closure else each for each in inputs)
        return given, {k: watched if each is closure else each for k, each in named.items()}

    def _before_update(self) -> None:
        if self._kept and self._to.wants("clipped_gradient"):
            self._clipped_gradients()
        elif not self._kept and self._to.wants("gradient"):
            self._gradients()

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if sys._getframe(1) is not self._outermost:
            return
        self._outermost = None
        if optimizer is not self._optimizers[-1]:
            return
        if self._to.active:
            self._states()
            self._check_seen()
        self._kept.clear()
        self._outputs.clear()  # also of a model that is not called itself
        self._to.end_step()

    def _states(self) -> None:
        if self._to.wants("optimizer"):
            for optimizer in self._optimizers:
                for parameter, slots in optimizer.state.items():
                    name = self._names.get(id(parameter), "model")
                    for path, value in leaves(slots, (self._torch.Tensor, int, float)):
                        tensor = isinstance(value, self._torch.Tensor)
                        array = self._array(value) if tensor else np.asarray(value)
                        self._to.add("optimizer", name + path, array)
        self._weights("weight", self._array)

    def _check_seen(self) -> None:
        """Say in the first recorded step which modules were never called."""
        if self._to.began or not self._to.wants("forward"):
            return
        start = f"step {self._to.step}: "
        self._check_called(
            [
                name or "model"
                for name, each in self._modules.items()
                if not next(each.children(), None)
            ],
            f"{start}no module of the model was called with gradients; allowed: the model that "
            "the loop trains, watched before it is compiled",
            start,
        )


def _named(model: Any, found: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield what a model holds by the names that it has without the wrappers around it."""
    wrapped = type(model).__name__ in ("DataParallel", "DistributedDataParallel")
    for name, each in found:
        name = ".".join(part for part in name.split(".") if part != "_orig_mod")
        yield f"{name}.".removeprefix("module.").removesuffix(".") if wrapped else name, each
