"""What modules of a kind hold: parameters and outputs, and the layout of each framework.

The shared layout of a kind is PyTorch's: linear weights are [out, in], kernels [out, in, ...],
activations [batch, channels, ...] and [batch, time, ...].
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

# name of a class without its number of dimensions -> kind, where they are not the same
_KINDS = {
    "dense": "linear",
    "depthwiseconv": "conv",
    "relu6": "relu",
    **dict.fromkeys(("lstmcell", "optimizedlstmcell"), "lstm"),
    "grucell": "gru",
    "multiheaddotproductattention": "attention",
    "nondynamicallyquantizablelinear": "linear",
    "conv1d of transformers": "linear",
    "batchnormalization": "batchnorm",
    "layernormalization": "layernorm",
    "groupnormalization": "groupnorm",
    "rmsnormalization": "rmsnorm",
    "syncbatchnorm": "batchnorm",
    "embeddingbag": "embedding",
    "multiheadattention": "attention",
    "maxpooling": "maxpool",
    "averagepooling": "avgpool",
    "embed": "embedding",
    **dict.fromkeys(("layer", "model"), "module"),  # one of the user's own
}
_PLAIN = (
    "relu leakyrelu gelu elu silu tanh sigmoid softmax dropout flatten maxpool avgpool selu "
    "celu mish softplus softsign hardswish hardsigmoid hardtanh logsoftmax logsigmoid"
)
# Kinds without parameters, whose outputs are paired.
BARE = frozenset(_PLAIN.split())
RECURRENT = ("lstm", "gru")
_GATES = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2)}  # of PyTorch, as places among those of Keras

# a parameter that is made of others -> these, and how
JOINED: dict[str, tuple[tuple[str, ...], Sequence[Any]]] = {
    "in_proj_weight": (("q.weight", "k.weight", "v.weight"), ({"concatenate": 0},)),
    "in_proj_bias": (("q.bias", "k.bias", "v.bias"), ({"concatenate": 0},)),
    "bias": (("bias_ih", "bias_hh"), ("sum",)),
    "biases": (("bias_ih", "bias_hh"), ({"concatenate": 0},)),
}


@dataclass(frozen=True)
class Part:
    """A parameter or an output in the shared layout.

    Attributes:
      names: the side's tensors that it is made of.
      layout: the steps that make it of them, as `Layout.read` takes them.
    """

    names: tuple[str, ...]
    layout: tuple[Any, ...] = ()


@dataclass
class Unit:
    """A module that is paired as a whole, or a layer and direction of a recurrent one.

    Attributes:
      name: that of the module, with the layer and direction where it has several.
      kind: what it is, in any framework.
      parameters: role -> parameter, buffers too.
      outputs: role -> output.
      known: whether the layouts of its kind are known.
      settings: what the module was made with.
    """

    name: str
    kind: str
    parameters: dict[str, Part] = field(default_factory=dict)
    outputs: dict[str, Part] = field(default_factory=dict)
    known: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Module:
    """A module as the trace knows it.

    Attributes:
      name, kind, settings: as in the header.
      framework: "torch", "paddle", "keras" or "jax".
      parameters: what the module calls it -> the name in the trace, those of the modules
        inside it included.
      shapes: name in the trace -> shape; of outputs, forward/NAME.
      given: the shape of the last images before it, if they have their channels last.
      channels_last: whether images have their channels last here.
    """

    name: str
    kind: str
    framework: str
    parameters: Mapping[str, str]
    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    given: tuple[int, ...] = ()
    channels_last: bool = False


def kind_of(class_name: str) -> str:
    """Return the kind of a module: Conv2d is conv, Conv2DTranspose convtranspose."""
    name = re.sub(r"\d[dD](?=$|Transpose$)|_", "", class_name).lower()
    return _KINDS.get(name, name)


def kind_of_module(module: Mapping[str, Any]) -> str:
    """Return the kind of a module of a header; that of the function of Keras's Activation."""
    kind = kind_of(module["kind"])
    return kind_of(str(module["settings"].get(kind, kind))) if kind == "activation" else kind


def is_known(kind: str) -> bool:
    """Return whether a module of a kind is paired as a whole."""
    return kind in _PARAMETERS or kind in BARE or kind in RECURRENT


def units_of(module: Module) -> list[Unit]:
    """Return the units of a module that is called once."""
    try:
        if module.kind in RECURRENT:
            return _recurrent(module)
        of_kind = _PARAMETERS.get(module.kind, _as_they_are)
        parameters = of_kind(module)
        known = module.kind in _PARAMETERS or _fits_one_way(module)
    except (LookupError, ValueError):  # a class below a framework's, with its own parameters
        parameters, known = _as_they_are(module), False
    known = known and not _is_hidden_flattening(module)
    unit = Unit(module.name, module.kind, known=known, settings=module.settings)
    unit.outputs = _outputs(module)
    unit.parameters = {role: part for role, part in parameters.items() if part.names[0]}
    fused = module.settings.get("activation", module.settings.get("act"))
    if module.kind not in ("linear", "conv", "batchnorm") or fused in (None, "linear"):
        return [unit]
    # an activation inside a layer of Keras or Paddle: a module of its own elsewhere
    outputs, unit.outputs = unit.outputs, {}
    return [unit, Unit(f"{module.name} {fused}", kind_of(str(fused)), outputs=outputs)]


def _fits_one_way(module: Module) -> bool:
    """Return whether a module of no known kind holds at most one tensor, of unequal axes."""
    shapes = [module.shapes.get(name, ()) for name in module.parameters.values()]
    return len(shapes) < 2 and all(len(set(each)) == len(each) for each in shapes)


def fused(units: Sequence[Unit]) -> list[Unit]:
    """Return the units with all attention as two linear layers: of q, k and v, and behind it.

    Linear layers in a row are those of q, k and v if their names say so.
    """
    found: list[Unit] = []
    for unit in units:
        if unit.kind == "attention":
            of = {"weight": "in_proj_weight", "bias": "in_proj_bias"}
            parts = [
                {role: part for role, own in of.items() if (part := joint(own, unit))},
                {r[4:]: part for r, part in unit.parameters.items() if r.startswith("out.")},
            ]
            found += [
                Unit(f"{unit.name} {what}", "linear", own, outputs, unit.known)
                for what, own, outputs in zip(
                    ("qkv", "out"), parts, ({}, unit.outputs), strict=True
                )
            ]
            continue
        found.append(unit)
        three, names = found[-3:], [re.split(r"[./]", each.name) for each in found[-3:]]
        if (
            "".join(each[-1][:1] for each in names) == "qkv"
            and len({(*each[:-1], one.kind) for each, one in zip(names, three, strict=True)})
            == 1
        ):
            terms = {
                f"{letter}.{role}": part
                for letter, each in zip("qkv", three, strict=True)
                for role, part in each.parameters.items()
            }
            whole = Unit(three[0].name.removesuffix(names[0][-1])[:-1], "attention", terms)
            found[-3:] = fused([whole])[:1]
    return found


def joint(role: str, unit: Unit) -> Part | None:
    """Return a parameter that a unit may have as several, as one; None if it has neither."""
    terms, how = JOINED[role]
    found = [unit.parameters[each] for each in terms if each in unit.parameters]
    if len(found) < len(terms) or any(each.layout != found[0].layout for each in found):
        return unit.parameters.get(role)
    names = tuple(name for each in found for name in each.names)
    return Part(names, (*found[0].layout, *how))


def _outputs(module: Module) -> dict[str, Part]:
    whole = f"forward/{module.name}"
    name = next((each for each in (whole, f"{whole}/0") if each in module.shapes), None)
    if name is None:
        return {}
    rank = len(module.shapes[name])
    layout: tuple[Any, ...] = ()
    if module.kind == "attention" and module.settings.get("batch_first") is False and rank == 3:
        layout = ({"axes": [1, 0, 2]},)
    elif module.kind == "flatten" and module.given:
        layout = tuple(flattened(module.given, -1))
    elif module.channels_last and rank > 2:
        layout = ({"axes": [0, rank - 1, *range(1, rank - 1)]},)
    return {"output": Part((name.removeprefix("forward/"),), layout)}


def flattened(images: tuple[int, ...], rows: int) -> list[Any]:
    """Return the steps from rows of flattened [..., channels] to [channels, ...]."""
    sizes, rank = list(images[1:]), len(images)
    moved, flat = [sizes[-1], *sizes[:-1]], prod(sizes)
    return [
        {"reshape": [[rows, flat], [rows, *sizes]]},
        {"axes": [0, rank - 1, *range(1, rank - 1)]},
        {"reshape": [[rows, *moved], [rows, flat]]},
    ]


def _part(module: Module, role: str, *layout: Any) -> Part:
    return Part((module.parameters.get(role, ""),), layout)


def _as_they_are(module: Module) -> dict[str, Part]:
    return {role: Part((name,)) for role, name in module.parameters.items()}


def _is_hidden_flattening(module: Module) -> bool:
    """Return whether a linear layer reads images that were pooled and flattened unseen.

    The order of its rows then depends on their height and width, which the trace does not say.
    """
    if module.kind != "linear" or not module.given:
        return False
    inputs = module.shapes.get(module.parameters.get("kernel", ""), (0,))[0]
    return inputs not in (prod(module.given[1:]), module.given[-1])


def _linear(module: Module) -> dict[str, Part]:
    if module.framework == "torch" and "nf" not in module.settings:
        return _as_they_are(module)
    if module.framework in ("torch", "paddle"):  # transformers' Conv1D of nf features, too
        weight = _part(module, "weight", "transpose")
        return {"weight": weight, "bias": _part(module, "bias")}
    layout: list[Any] = ["transpose"]
    inputs, outputs = module.shapes.get(module.parameters["kernel"], (0, 0))
    if module.given and prod(module.given[1:]) == inputs:
        layout += flattened(module.given, outputs)  # it reads flattened images
    return {"weight": _part(module, "kernel", *layout), "bias": _part(module, "bias")}


def _conv(module: Module) -> dict[str, Part]:
    if module.framework in ("torch", "paddle"):
        return _as_they_are(module)
    shape = module.shapes.get(module.parameters["kernel"], ())
    rank = len(shape)
    layout: list[Any] = [{"axes": [rank - 1, rank - 2, *range(rank - 2)]}]
    if "depth_multiplier" in module.settings:  # of Keras: several filters for each channel
        *sizes, channels, filters = shape
        whole = [[channels, filters, *sizes], [channels * filters, 1, *sizes]]
        layout = [{"axes": [rank - 2, rank - 1, *range(rank - 2)]}, {"reshape": whole}]
    return {"weight": _part(module, "kernel", *layout), "bias": _part(module, "bias")}


def _transposed_conv(module: Module) -> dict[str, Part]:
    if module.framework == "jax":  # whose kernel is turned around
        raise LookupError(module.kind)
    return _conv(module)


def _embedding(module: Module) -> dict[str, Part]:
    names = {"keras": "embeddings", "jax": "embedding"}
    return {"weight": _part(module, names.get(module.framework, "weight"))}


def _norm(module: Module) -> dict[str, Part]:
    roles: dict[str, tuple[str, ...]] = {
        "weight": ("weight", "gamma", "scale"),
        "bias": ("bias", "beta"),
        "running_mean": ("running_mean", "_mean", "moving_mean", "mean"),
        "running_var": ("running_var", "_variance", "moving_variance", "var"),
    }
    return _called(module, roles)


def _by_feature(module: Module) -> dict[str, Part]:
    """Return weights of which there is one for each feature, whatever axes of 1 are around."""
    roles = {"weight": ("weight", "_weight", "alpha", "negative_slope"), "bias": ("bias",)}
    found = _called(module, roles)
    for role, part in found.items():
        shape = module.shapes.get(part.names[0], ())
        if len(shape) > 1 and max(shape) == prod(shape):
            found[role] = Part(part.names, ({"reshape": [list(shape), [max(shape)]]},))
    return found


def _called(module: Module, roles: Mapping[str, tuple[str, ...]]) -> dict[str, Part]:
    return {
        role: _part(module, next((each for each in own if each in module.parameters), ""))
        for role, own in roles.items()
    }


def _attention(module: Module) -> dict[str, Part]:
    if module.framework == "torch":
        names = {"out_proj.weight": "out.weight", "out_proj.bias": "out.bias"}
        names |= {f"{each}_proj_weight": f"{each}.weight" for each in "qkv"}
        return {names.get(role, role): part for role, part in _as_they_are(module).items()}
    found: dict[str, Part] = {}
    if module.framework == "paddle":
        for each in ("q", "k", "v", "out"):
            found[f"{each}.weight"] = _part(module, f"{each}_proj.weight", "transpose")
            found[f"{each}.bias"] = _part(module, f"{each}_proj.bias")
        return found
    mark, last = ("/", "attention_output") if module.framework == "keras" else (".", "out")
    for each, name in zip("qkv", ("query", "key", "value"), strict=True):
        kernel = list(module.shapes.get(module.parameters[f"{name}{mark}kernel"], (0, 0, 0)))
        rows = [kernel[0], kernel[1] * kernel[2]]
        found[f"{each}.weight"] = _part(
            module, f"{name}{mark}kernel", {"reshape": [kernel, rows]}, "transpose"
        )
        bias = {"reshape": [kernel[1:], rows[1:]]}
        found[f"{each}.bias"] = _part(module, f"{name}{mark}bias", bias)
    kernel = list(module.shapes.get(module.parameters[f"{last}{mark}kernel"], (0, 0, 0)))
    found["out.weight"] = _part(
        module,
        f"{last}{mark}kernel",
        {"reshape": [kernel, [kernel[0] * kernel[1], kernel[2]]]},
        "transpose",
    )
    found["out.bias"] = _part(module, f"{last}{mark}bias")
    return found


_PARAMETERS: dict[str, Callable[[Module], dict[str, Part]]] = {
    "linear": _linear,
    "conv": _conv,
    "embedding": _embedding,
    "convtranspose": _transposed_conv,
    **dict.fromkeys(("batchnorm", "layernorm", "groupnorm", "instancenorm", "rmsnorm"), _norm),
    **dict.fromkeys(("prelu", "bilinear"), _by_feature),
    "attention": _attention,
}


def _recurrent(module: Module) -> list[Unit]:
    if module.framework == "keras":
        unit = Unit(module.name, module.kind, settings=module.settings)
        unit.parameters, unit.outputs = _keras_cell(module), _keras_states(module)
        return [unit]
    if module.framework == "jax":
        return [_flax_cell(module)]
    if "weight_ih" in module.parameters:  # a cell
        return [Unit(module.name, module.kind, _as_they_are(module))]
    layers = 0
    while f"weight_ih_l{layers}" in module.parameters:
        layers += 1
    ends = ["", "_reverse"] if "weight_ih_l0_reverse" in module.parameters else [""]
    units = []
    for layer in range(layers):
        for end in ends:
            several = layers * len(ends) > 1
            unit = Unit(f"{module.name} l{layer}{end}" if several else module.name, module.kind)
            unit.settings = module.settings
            for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                name = module.parameters.get(f"{role}_l{layer}{end}")
                if name is not None:
                    unit.parameters[role] = Part((name,))
            units.append(unit)
    units[-1].outputs = _fused_states(module, layers * len(ends))
    return units


def _fused_states(module: Module, states: int) -> dict[str, Part]:
    """Return what a module of all layers returns: a sequence and the last states."""
    time_first = module.settings.get("time_major", module.settings.get("batch_first") is False)
    found = {}
    for role, path in (("sequence", "0"), ("h", "1/0"), ("h", "1"), ("c", "1/1")):
        name = f"{module.name}/{path}"
        shape = module.shapes.get(f"forward/{name}", ())
        if len(shape) != 3:
            continue
        layout: tuple[Any, ...] = ()
        if role == "sequence":
            layout = ({"axes": [1, 0, 2]},) if time_first else ()
        elif states == 1:
            layout = ({"reshape": [[1, -1, shape[2]], [-1, shape[2]]]},)
        found[role] = Part((name,), layout)
    return found


def _keras_states(module: Module) -> dict[str, Part]:
    first = "sequence" if module.settings.get("return_sequences") else "h"
    if not module.settings.get("return_state"):
        places = {first: module.name}
    else:
        places = {first: f"{module.name}/0", "h": f"{module.name}/1", "c": f"{module.name}/2"}
    return {
        role: Part((name,))
        for role, name in places.items()
        if f"forward/{name}" in module.shapes
    }


def _flax_cell(module: Module) -> Unit:
    """Return a cell, whose gates may have layers of their own."""

    def of_gates(source: str, role: str, *layout: Any) -> Part:
        whole = module.parameters.get(f"dense_{source}.{role}")
        if whole is not None:
            return Part((whole,), layout)
        layers = [f"{source}{gate}" for gate in {"lstm": "ifgo", "gru": "rzn"}[module.kind]]
        known = {name.replace("_.", "."): each for name, each in module.parameters.items()}
        names = tuple(known.get(f"{layer}.{role}", "") for layer in layers)
        return Part(names, (*layout, {"concatenate": 0})) if all(names) else Part(("",))

    unit = Unit(module.name, module.kind, settings=module.settings)
    unit.parameters = {
        "weight_ih": of_gates("i", "kernel", "transpose"),
        "weight_hh": of_gates("h", "kernel", "transpose"),
    }
    if module.kind == "lstm":
        unit.parameters["bias"] = of_gates("h", "bias")
    else:  # which has none of the hidden state, or that of n alone
        unit.parameters |= {
            "bias_ih": of_gates("i", "bias"),
            "bias_hn": _part(module, "hn.bias"),
        }
    unit.parameters = {role: part for role, part in unit.parameters.items() if part.names[0]}
    used = {name for part in unit.parameters.values() for name in part.names}
    if used != set(module.parameters.values()):
        raise LookupError(module.name)
    around = module.name.rpartition(".")[0]
    if len(module.shapes.get(f"forward/{around}", ())) == 3:
        unit.outputs = {"sequence": Part((around,))}
    return unit


def _keras_cell(module: Module) -> dict[str, Part]:
    last = "recurrent_kernel"
    (cell,) = [role.removesuffix(last) for role in module.parameters if role.endswith(last)]
    order = _GATES[module.kind]
    gates = [] if order == tuple(sorted(order)) else [{"blocks": [0, list(order)]}]
    found = {
        "weight_ih": _part(module, f"{cell}kernel", "transpose", *gates),
        "weight_hh": _part(module, f"{cell}{last}", "transpose", *gates),
    }
    bias = module.parameters.get(f"{cell}bias")
    if bias is not None and len(module.shapes.get(bias, ())) == 2:  # a GRU with reset_after
        two, size = module.shapes[bias]
        found["biases"] = Part(
            (bias,),
            ({"blocks": [1, list(order)]}, {"reshape": [[two, size], [two * size]]}),
        )
    elif bias is not None:
        found["bias"] = Part((bias,), tuple(gates))
    return found
