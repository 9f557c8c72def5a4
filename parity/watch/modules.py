"""What the modules of a model are: their kinds, parameters and settings, for the header."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Attributes that are the framework's own business, and say nothing of what is computed.
_INTERNAL = frozenset(
    [
        *("training", "full_name", "built", "dtype", "init_in_dynamic_mode", "in_place"),
        *("cast_to_low_precison", "could_use_cudnn", "trainable", "name"),
        *("is_full_backward_hook", "flat_weights_names", "all_weights", "opti_name_list"),
    ]
)
_LONGEST = 16  # of a list that is a setting, and not data


def described(
    modules: Iterable[tuple[str, Any]],
    framework: str,
    parameters: Callable[[Any], Iterable[tuple[str, Any]]],
    names: Mapping[int, str],
    settings: Callable[[Any], Mapping[str, Any]] = vars,
) -> list[dict[str, Any]]:
    """Return name, kind, parameters and settings of each module, as plain values.

    The kind is the name of the class, or of the nearest one above it that is the framework's.

    Args:
      modules: (name, module), in the order of their definition.
      framework: the name of the package whose classes have kinds.
      parameters: returns (what the module calls it, tensor) of its own parameters and buffers.
      names: id of a tensor -> the name that it has in the trace.
      settings: returns name -> value of what a module of the framework was made with.
    """
    found = []
    for name, module in modules:
        kinds = [
            each
            for each in type(module).__mro__
            if each.__module__.split(".", 1)[0] == framework
        ]
        mine = {role: names[id(each)] for role, each in parameters(module) if id(each) in names}
        found.append(
            {
                "name": name,
                "kind": kinds[0].__name__ if kinds else type(module).__name__,
                "parameters": mine,
                "settings": plain(settings(module)),
            }
        )
    return found


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
