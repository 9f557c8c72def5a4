"""Parses JSON that anything may have written."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return what a text says in JSON.

    Raises:
      ValueError: for anything else, with the reason; also for what is nested too deeply, at
        which the standard library raises a `RecursionError`.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
