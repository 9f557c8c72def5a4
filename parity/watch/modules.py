"""What the modules of a model are: their kinds, parameters and settings, for the header."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

# Attributes that are the framework's own business, and say nothing of what is computed.
_INTERNAL = frozenset(
    [
        *("training", "full_name", "built", "dtype", "init_in_dynamic_mode", "in_place"),
        *("cast_to_low_precison", "could_use_cudnn", "trainable", "name"),
        *("is_full_backward_hook", "flat_weights_names", "all_weights", "opti_name_list"),
    ]
)
_BESIDE = ("transformers.pytorch_utils",)  # holds a kind of layer that is not the framework's
_OF_PARAMETERS = ("initial", "gradient", "clipped_gradient", "optimizer", "weight")
_LONGEST = 16  # of a list that is a setting, and not data


def described(
    modules: Iterable[tuple[str, Any]],
    framework: str,
    parameters: Callable[[Any], Iterable[tuple[str, Any]]],
    names: Mapping[int, str],
    settings: Callable[[Any], Mapping[str, Any]] = vars,
) -> list[dict[str, Any]]:
    """Return name, kind, parameters, settings and source of each module, as plain values.

    The kind is the name of the class, or of the nearest one above it that is the framework's.

    Args:
      modules: (name, module), in the order of their definition.
      framework: the name of the package whose classes have kinds.
      parameters: returns (what the module calls it, tensor) of its own parameters and buffers.
      names: id of a tensor -> the name that it has in the trace.
      settings: returns name -> value of what a module of the framework was made with.
    """
    found = []
    modules = list(modules)
    classes = {name: type(module) for name, module in modules}
    for name, module in modules:
        kinds = [
            each.__name__ if each.__module__ not in _BESIDE else f"{each.__name__} of {package}"
            for each in type(module).__mro__
            if (package := each.__module__.split(".", 1)[0]) == framework
            or each.__module__ in _BESIDE
        ]
        mine = {role: names[id(each)] for role, each in parameters(module) if id(each) in names}
        found.append(
            {
                "name": name,
                "kind": kinds[0] if kinds else type(module).__name__,
                "parameters": mine,
                "settings": plain(settings(module)),
                "source": _source(name, classes, framework),
            }
        )
    return found


def sources(modules: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return name of a tensor in this side's code -> the lines that made it.

    Args:
      modules: what `described` returned.
    """
    return {
        f"{kind}/{name}": module["source"]
        for module in modules
        if module["source"]
        for kinds, names in (
            (("forward", "activation_gradient"), [module["name"]]),
            (_OF_PARAMETERS, module["parameters"].values()),
        )
        for name in names
        for kind in kinds
    }


def _source(name: str, classes: Mapping[str, type], framework: str) -> str:
    """Return the line where a module was made; else that of the nearest class of the user's.

    Args:
      classes: name -> class, of all modules.

    Returns:
      Such as "net.py:12 (Net: self.fc1)"; empty if no class around it is the user's.
    """
    parts = re.split(r"[./]", name)
    for count in range(len(parts), -1, -1):
        around = ".".join(parts[:count]) or "model"
        kind = classes.get(around, classes.get("/".join(parts[:count])))
        if kind is None or kind.__module__.split(".", 1)[0] == framework:
            continue
        try:
            lines, first = inspect.getsourcelines(kind)
            file = Path(inspect.getsourcefile(kind) or "")
        except (OSError, TypeError):  # defined where no file is, such as a prompt
            return ""
        here = Path.cwd()
        file = Path(file.relative_to(here) if file.is_relative_to(here) else file.name)
        if not str(file).isprintable():
            return ""  # a header does not take it
        attribute = parts[count] if count < len(parts) and around != name else ""
        made = re.compile(rf"\bself\.{re.escape(attribute)}\s*(:[^=]+)?=[^=]")
        for line, text in enumerate(lines, start=first):
            if attribute and made.search(text):
                return f"{file}:{line} ({kind.__name__}: self.{attribute})"
        return f"{file}:{first} ({kind.__name__})"
    return ""


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are numbers, texts or lists of them."""
    return {
        name.lstrip("_"): list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if name.lstrip("_") not in _INTERNAL and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= _LONGEST and all(map(_is_plain, value))
    finite = not isinstance(value, float) or abs(value) < float("inf")
    return finite and (value is None or isinstance(value, (bool, int, float, str)))
