"""The laboratory, `parity.twins`: the two networks and their proof, which only a checkout has.

The library never imports it. The few places where the laboratory adds to the library ask for
what it adds by name, here: its commands, and what it knows of the traces of its own trainings.
"""

from typing import Any

from parity.base.plugins import load_object

_PACKAGE = "parity.twins"


def of_laboratory(path: str) -> Any | None:
    """Return an object of the laboratory; None if it is not installed, as in a wheel.

    Args:
      path: the object below `parity.twins`, as "package.module:name".
    """
    try:
        return load_object(f"{_PACKAGE}.{path}")
    except ModuleNotFoundError as error:
        if error.name == _PACKAGE:
            return None
        raise
