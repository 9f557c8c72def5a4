"""What the header of a trace must hold if one of this project's trainings wrote it."""

from collections.abc import Mapping
from typing import Any

from parity.trace.header import check_least, check_types, check_versions
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide

_TYPES: dict[str, type] = {
    **dict.fromkeys(("framework", "strategy", "kernels", "corpus"), str),
    **dict.fromkeys(("replicas", "processes", "batches_per_epoch"), int),
    **dict.fromkeys(("settings", "spec", "versions"), dict),
    "synchronous": bool,
}
_OPTIONAL: dict[str, type] = {"preset": str}
_LEAST = {"replicas": 1, "processes": 1, "batches_per_epoch": 1}


def check_trained(header: Mapping[str, Any]) -> TrainedSide:
    """Check the values of trace.json that only a training of this project writes.

    Raises:
      UsageError: for a key or a value that is not allowed.
    """
    check_types(header, _TYPES, _OPTIONAL)
    check_least(header, _LEAST)
    check_versions(header["versions"])
    Spec.from_json(header["spec"])
    return TrainedSide.from_json(header)
