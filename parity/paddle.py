"""Records a Paddle training while it runs: `watch` around a loop that stays as it is."""

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.optimizer_state import power_after, slots_of
from parity.align.weights import check_kept, read_weights
from parity.base.errors import UsageError
from parity.watch import programs
from parity.watch.hooks import ModuleHooks
from parity.watch.modules import described, plain
from parity.watch.recording import Recording

# Paddle 2.6's library exports zlib's functions. Whoever binds them after it was imported gets
# its own, and crashes; so they are bound here, for those who import this module first.
zlib.decompress(zlib.compress(b"parity"))


@contextmanager
def watch(
    folder: str | Path, model: Any, optimizer: Any, **options: Any
) -> Iterator[Recording]:
    """Record every step of a training, which ends with the optimiser's step.

        with parity.paddle.watch("out/port", model, optimizer):
            train(model, optimizer, data)

    What is recorded, and the options, are those of `parity.torch.watch`. `gradient` is what
    the optimiser was given, `clipped_gradient` what its `grad_clip` made of it. Of several
    optimisers the last one's step ends a step.

    Of a static graph a step is a run of the program by a `paddle.static.Executor`, and names
    are those of its variables.

    Args:
      model: the `paddle.nn.Layer`; or the `paddle.static.Program`, after `minimize`.

    Raises:
      UsageError: for a model that cannot be watched, or an option that is not allowed.
    """
    if "paddle" not in sys.modules and "tensorflow" in sys.modules:
        raise UsageError(
            "tensorflow was imported before paddle, which then crashes; allowed: import paddle "
            "first, or record the two in two processes"
        )
    import paddle

    static = isinstance(model, paddle.static.Program)
    if not static and not isinstance(model, paddle.nn.Layer):
        raise UsageError(
            f"model is {type(model).__name__}; allowed: a paddle.nn.Layer or a "
            "paddle.static.Program"
        )
    optimizers = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    for each in optimizers:
        if not isinstance(each, paddle.optimizer.Optimizer):
            raise UsageError(f"optimizer is {each!r}; allowed: a paddle.optimizer.Optimizer")
    if static and len(optimizers) > 1:
        raise UsageError(f"{len(optimizers)} optimizers; allowed of a static graph: one")
    if not static and not paddle.in_dynamic_mode():
        raise UsageError(
            "Paddle is in static mode; allowed: dygraph, paddle.disable_static(), or a "
            "paddle.static.Program"
        )
    if static:
        program = programs.Program(model)
        buffers, modules, parameters = program.buffers, program.modules, model.all_parameters()
    else:
        buffers = [name for name, _ in _named(model, model.named_buffers())]
        modules, parameters = _modules(model), model.parameters()
    rate, decay = optimizers[-1].get_lr(), _decay(vars(optimizers[-1]))
    last = {**vars(optimizers[-1]), "learning_rate": rate, "weight_decay": decay}
    groups = [] if static else list(_groups(model, optimizers))
    facts = {
        "device": paddle.get_device(),
        "buffers": buffers,
        "modules": modules,
        "optimizer": {
            "kind": type(optimizers[-1]).__name__,
            "settings": plain(last),
        },
        "optimizers": groups if len(groups) > 1 else [],
    }
    kinds = {str(each.dtype).rpartition(".")[2] for each in parameters}
    versions = {"paddle": paddle.__version__}
    # in a training that is not parallel: 0 of 1
    ranks = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    options = {"ranks": ranks, **options}
    recording = Recording(folder, "paddle", kinds, versions, facts, **options)
    around = programs.Fetches(recording, program, optimizers[0]) if static else None
    with recording, around or _Hooks(recording, model, optimizers):
        yield recording


def load(model: Any, file: str | Path, optimizer: Any = None) -> None:
    """Give a model the weights of a file that `parity weights` wrote; see `parity.torch.load`.

    Args:
      model: the `paddle.nn.Layer`; or the `paddle.static.Program`, after its startup program.

    Raises:
      UsageError: as `parity.torch.load` does.
    """
    import paddle

    if isinstance(model, paddle.static.Program):
        programs.load(model, file, optimizer)
        return
    parameters = dict(_named(model, model.named_parameters()))
    buffers = dict(_named(model, model.named_buffers()))
    tensors = {**buffers, **parameters}
    shapes = {name: tuple(each.shape) for name, each in tensors.items()}
    slots = None if optimizer is None else slots_of("paddle", type(optimizer).__name__)
    given = read_weights(file, shapes, set(buffers), slots)

    def take(tensor: Any, name: str, array: np.ndarray) -> None:
        tensor.set_value(paddle.to_tensor(array).cast(tensor.dtype))
        kept = tensor.cast("float64") if array.dtype.kind == "f" else tensor
        check_kept(file, name, array, kept.numpy())

    for name, array in given.weights.items():
        take(tensors[name], name, array)
    if optimizer is None:
        return
    # which Paddle does itself in the first step
    optimizer.helper = paddle.base.layer_helper.LayerHelper(type(optimizer).__name__)
    block = paddle.static.default_main_program().global_block()
    optimizer._create_accumulators(block, [parameters[name] for name, _ in given.state])
    for (name, slot), array in given.state.items():
        take(optimizer._get_accumulator(slot, parameters[name]), name, array)
    for beta in ("beta1", "beta2"):
        for each in optimizer._accumulators.get(f"{beta}_pow_acc", {}).values():
            power = power_after(given.steps, getattr(optimizer, f"_{beta}"), each.numpy().dtype)
            each.set_value(power)


def _modules(model: Any) -> list[dict[str, Any]]:
    """Return what the layers of a model are, for the header."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    layers = _named(model, model.named_sublayers(include_self=True))
    return described(
        ((name or "model", layer) for name, layer in layers),
        "paddle",
        lambda layer: (*layer._parameters.items(), *layer._buffers.items()),
        {id(each): name for name, each in _named(model, tensors)},
    )


def _named(model: Any, found: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield what a model holds by the names that it has without a DataParallel around it."""
    wrapped = type(model).__name__ == "DataParallel"
    for name, each in found:
        yield f"{name}.".removeprefix("_layers.").removesuffix(".") if wrapped else name, each


def _groups(model: Any, optimizers: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield what each optimiser does to each of its groups of parameters, for the header."""
    names = {id(each): name for name, each in _named(model, model.named_parameters())}
    for each in optimizers:
        groups, rate = each._param_groups, each.get_lr()
        if not any(isinstance(group, dict) for group in groups):
            groups = [{"params": groups}]
        for group in groups:
            # by its share of the optimiser's rate, a group's among them, and its decay
            alike: dict[tuple[float, Any], list[str]] = {}
            for parameter in (p for p in group["params"] if id(p) in names):
                share = parameter.optimize_attr["learning_rate"]
                key = share, _decay({**vars(each), **group}, parameter)
                alike.setdefault(key, []).append(names[id(parameter)])
            for (share, decay), parameters in alike.items():
                own = {"learning_rate": rate * share, "weight_decay": decay}
                yield {
                    "kind": type(each).__name__,
                    "settings": plain({**vars(each), **group, **own}),
                    "parameters": parameters,
                }


def _decay(given: Mapping[str, Any], parameter: Any = None) -> Any:
    """Return by what weights decay: a number, or "L1" and one.

    Args:
      given: what an optimiser was made with, and a group of parameters.
      parameter: the weight that decays; None for the decay that the optimiser has.
    """
    if "_apply_decay_param_fun" in given:  # AdamW
        decays = parameter is not None and given["_apply_decay_param_fun"]
        if decays and not decays(parameter.name):
            return 0.0
        return given.get("weight_decay", given["_weight_decay"])
    if "_lamb_weight_decay" in given:
        leaves = parameter is not None and given["_exclude_from_weight_decay_fn"]
        if leaves and leaves(parameter):
            return 0.0
        return given.get("lamb_weight_decay", given["_lamb_weight_decay"])
    regularizer = getattr(parameter, "regularizer", None) or given.get("regularization")
    if regularizer is not None:
        size = regularizer._coeff
        return f"L1 {size}" if type(regularizer).__name__ == "L1Decay" else size
    # what Momentum takes apart
    kind, size = (
        given.get(f"regularization_{each}", given.get(f"_regularization_{each}"))
        for each in ("method", "coeff")
    )
    return size if kind == "l2_decay" else 0.0


class _Hooks(ModuleHooks):
    """Hooks on a model and its optimisers."""

    def __init__(self, recording: Recording, model: Any, optimizers: Sequence[Any]):
        import paddle

        super().__init__(
            recording,
            paddle.Tensor,
            dict(_named(model, model.named_parameters())),
            dict(_named(model, model.named_buffers())),
        )
        self._paddle, self._model, self._optimizers = paddle, model, optimizers
        # Paddle's own name of a parameter -> its name in the model
        self._names = {each.name: name for name, each in self._parameters.items()}
        self._stepping = False

    def __enter__(self) -> "_Hooks":
        model = self._model
        layers = dict(_named(model, model.named_sublayers(include_self=True)))
        for name, layer in layers.items():
            handle = layer.register_forward_post_hook(self._output(name or "model"))
            self._undo.callback(handle.remove)
        self._undo.callback(model.register_forward_pre_hook(self._begin).remove)
        self._replace(self._paddle.Tensor, "backward", self._watched_backward)
        for each in self._optimizers:
            wrap = partial(self._watched_step, last=each is self._optimizers[-1])
            self._replace(each, "step", wrap)
            self._replace(each, "minimize", wrap)
        clips = {id(clip): clip for each in self._optimizers if (clip := each._grad_clip)}
        for clip in clips.values():
            self._replace(clip, "_dygraph_clip", self._watched_clip)
        if self._to.perturbation:
            for each in (*self._parameters.values(), *self._buffers.values()):
                each.set_value(self._moved(each.detach()))
        self._weights("initial", self._copy)
        return self

    def _copy(self, tensor: Any) -> np.ndarray:
        if str(tensor.dtype).rpartition(".")[2] in ("bfloat16", "float16"):
            # `numpy` would give bfloat16 as integers of 16 bits
            tensor = tensor.detach().cast("float32")
        array = np.array(tensor.numpy())
        if tensor.is_selected_rows():  # the gradient of a sparse embedding
            held = tensor.get_selected_rows()
            rows, array = array, np.zeros((held.height(), *array.shape[1:]), array.dtype)
            np.add.at(array, held.rows(), rows)
        return array

    def _like(self, array: np.ndarray, tensor: Any) -> Any:
        return self._paddle.to_tensor(array).cast(tensor.dtype)

    def _has_gradient(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def _filled(self, tensor: Any, array: np.ndarray) -> Any:
        if array.dtype.name not in str(tensor.dtype):
            return tensor
        tensor = tensor.clone()
        tensor.get_tensor().set(array, self._paddle.framework._current_expected_place())
        return tensor

    def _counts(self) -> bool:
        seen = self._to.active or self._to.perturbation is not None
        return bool(seen and self._paddle.is_grad_enabled())

    def _begin(self, layer: Any, inputs: Any) -> Any:
        if not self._counts():
            return None
        if self._to.wants("batch"):
            self._batch(inputs, {})
        return self._moved_in(inputs)

    def _watched_backward(self, backward: Any) -> Any:
        def watched(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if self._to.wants("loss"):
                self._to.add("loss", "loss", self._copy(tensor))
            return backward(tensor, *arguments, **named)

        return watched

    def _watched_step(self, step: Any, *, last: bool) -> Any:
        """Put the record of a step around `step` or `minimize`, whichever is outermost."""

        def watched(*arguments: Any, **named: Any) -> Any:
            if self._stepping:
                return step(*arguments, **named)
            self._stepping = True
            try:
                if self._to.wants("gradient"):
                    for name, each in self._parameters.items():
                        if each.grad is not None:
                            self._to.add("gradient", name, self._copy(each.grad), replace=True)
                result = step(*arguments, **named)
            finally:
                self._stepping = False
            if last:
                self._states()
                self._outputs.clear()
                self._to.end_step()
            return result

        return watched

    def _watched_clip(self, clip: Any) -> Any:
        def watched(pairs: Any) -> Any:
            clipped = clip(pairs)
            if self._to.wants("clipped_gradient"):
                for parameter, gradient in clipped:
                    if gradient is not None and parameter.name in self._names:
                        name = self._names[parameter.name]
                        self._to.add("clipped_gradient", name, self._copy(gradient))
            return clipped

        return watched

    def _states(self) -> None:
        if self._to.wants("optimizer"):
            for optimizer in self._optimizers:
                for slot, of_parameters in optimizer._accumulators.items():
                    for own, value in of_parameters.items():
                        name = self._names.get(own, own)
                        self._to.add("optimizer", f"{name}/{slot}", self._copy(value))
        self._weights("weight", self._copy)
