"""What a checkpoint must hold, checked before either framework sees any of it.

A hash tells that a file is as it was written. It does not tell that whoever wrote it was this
project: frameworks convert a wrong precision in silence, or start a missing state at zero.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import snapshot_shapes
from parity.twins.spec.spec import Spec

_METADATA = "metadata"  # as JSON, among the tensors that travel to the other ranks
STATE = "state/"  # what the names of the recurrent state begin with
TYPES = {"F32": "float32", "F64": "float64"}  # as safetensors names them, and as NumPy does
LAST_STEP = 99_999_999  # eight digits in the name of a checkpoint
_LISTED = 6  # names in a message
_FRAMEWORK = re.compile(r"[\w.-]{1,40}")
_HASH = re.compile(r"[\w:.-]{1,200}")  # of a text; one of your own may hash as it likes
_FILE_NAME = re.compile(r"\w[\w.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Checkpoint:
    """All that is needed to resume training as if it had never stopped.

    Attributes:
      spec: the network and its training.
      step: the next step, counted over epochs, which is also the position in the data.
      snapshot: "weight/...", "optimizer/..." -> array, canonical layout, the run's dtype.
      state: the recurrent state to continue with, name -> [batch, layers, hidden], in the run's
        dtype; None for a network that has none.
      corpus: the hash of the encoded text and vocabulary.
      framework: the framework that wrote it.
      vocabularies: file name -> sha256 of the vocabularies in the same folder.
    """

    spec: Spec
    step: int
    snapshot: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray] | None
    corpus: str
    framework: str
    vocabularies: Mapping[str, str] = field(default_factory=dict)


def contents_of(checkpoint: Checkpoint) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return metadata and tensors, of which `checked_contents` makes the checkpoint again."""
    state = checkpoint.state or {}
    tensors = dict(checkpoint.snapshot) | {f"{STATE}{k}": array for k, array in state.items()}
    metadata = {
        "spec": json.dumps(checkpoint.spec.to_json()),
        "step": str(checkpoint.step),
        "corpus": checkpoint.corpus,
        "framework": checkpoint.framework,
        "vocabularies": json.dumps(dict(checkpoint.vocabularies), sort_keys=True),
    }
    return metadata, {name: np.asarray(array, order="C") for name, array in tensors.items()}


def shared_checkpoint(group: ProcessGroup, checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return on every rank the checkpoint that rank 0 has found, or None if it has none.

    The others need no access to its file.
    """
    if group.size == 1:
        return checkpoint
    if group.rank > 0:
        tensors = dict(group.broadcast(None))
        if not tensors:
            return None
        return checked_contents(json.loads(tensors.pop(_METADATA).tobytes()), tensors)
    tensors = {}
    if checkpoint is not None:
        metadata, tensors = contents_of(checkpoint)
        tensors[_METADATA] = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
    group.broadcast(tensors)
    return checkpoint


def contents_hash(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> str:
    """Return a hash of all that a checkpoint's file holds."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def check_types(types_found: Mapping[str, str]) -> None:
    """Refuse types that no checkpoint has, some of which NumPy cannot even read.

    Args:
      types_found: tensor -> its type, as safetensors names it.

    Raises:
      UsageError: naming the first such tensor.
    """
    for name, found in sorted(types_found.items()):
        if found not in TYPES:
            raise UsageError(f"{name!r} is of type {found}; allowed: {', '.join(TYPES)}")


def checked_contents(
    metadata: Mapping[str, str], tensors: Mapping[str, np.ndarray]
) -> Checkpoint:
    """Return a checkpoint whose values are checked.

    Args:
      metadata: the metadata of the file.
      tensors: all of its tensors.

    Raises:
      UsageError: naming the first field or tensor that is missing or not what its spec says.
    """
    spec = _spec(_json(metadata, "spec"))
    snapshot = {name: a for name, a in tensors.items() if not name.startswith(STATE)}
    _check_snapshot(spec, snapshot)
    state = {name.removeprefix(STATE): a for name, a in tensors.items() if name not in snapshot}
    _check_state(spec, state)
    for name, array in tensors.items():
        if array.dtype != spec.training.dtype:
            raise UsageError(f"{name} is {array.dtype}; its spec says {spec.training.dtype}")
        if not np.all(np.isfinite(array)):
            raise UsageError(f"{name} is not finite")
    return Checkpoint(
        spec,
        _step(metadata),
        {name: snapshot[name] for name in snapshot_shapes(spec)},
        state or None,
        _text(metadata, "corpus", _HASH, "a hash"),
        _text(metadata, "framework", _FRAMEWORK, "a name"),
        _vocabularies(_json(metadata, "vocabularies")),
    )


def _check_snapshot(spec: Spec, snapshot: Mapping[str, np.ndarray]) -> None:
    shapes = snapshot_shapes(spec)
    if snapshot.keys() != shapes.keys():
        missing, extra = sorted(shapes.keys() - snapshot), sorted(snapshot.keys() - shapes)
        raise UsageError(
            f"tensors missing: {_listed(missing) or 'none'}; extra: {_listed(extra) or 'none'}"
        )
    for name, shape in shapes.items():
        if snapshot[name].shape != shape:
            raise UsageError(f"{name} is {snapshot[name].shape}; its spec says {shape}")


def _check_state(spec: Spec, state: Mapping[str, np.ndarray]) -> None:
    network, most = NETWORKS[spec.network], spec.training.batch_size
    shapes = network.state(spec.model)
    if state.keys() != shapes.keys():
        raise UsageError(
            f"the recurrent state holds {_listed(sorted(state)) or 'nothing'}; its spec says "
            f"{sorted(shapes) or 'nothing'}"
        )
    whole = network.contiguous(spec.text)  # elsewhere the last batch of an epoch has fewer rows
    for name, shape in shapes.items():
        found = state[name].shape
        rows = found[0] if found else 0
        if found[1:] != shape or not (most if whole else 1) <= rows <= most:
            expected = ", ".join(map(str, (most if whole else f"1..{most}", *shape)))
            raise UsageError(f"{STATE}{name} is {found}; its spec says ({expected})")


def _spec(values: Any) -> Spec:
    if not isinstance(values, dict) or not isinstance(values.get("network"), str):
        raise UsageError(f"spec is {_short(values)}; allowed: an object with a network")
    return Spec.from_json(values)


def _step(metadata: Mapping[str, str]) -> int:
    found = _text(metadata, "step", re.compile(r"[0-9]{1,20}"), f"0 .. {LAST_STEP:,}")
    if int(found) > LAST_STEP:
        raise UsageError(f"step is {found}; allowed: 0 .. {LAST_STEP:,}")
    return int(found)


def _vocabularies(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise UsageError(f"vocabularies is {_short(values)}; allowed: an object")
    for name, digest in values.items():
        # a path would let a checkpoint say which files are read
        if not _FILE_NAME.fullmatch(name):
            raise UsageError(f"vocabularies: {_short(name)}; allowed: the name of a file")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise UsageError(f"vocabularies: {name} is {_short(digest)}; allowed: a sha256")
    return values


def _json(metadata: Mapping[str, str], name: str) -> Any:
    text = _text(metadata, name, re.compile(r".*", re.DOTALL), "JSON")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{name} is {_short(text)}; allowed: JSON") from None


def _text(
    metadata: Mapping[str, str], name: str, pattern: re.Pattern[str], allowed: str
) -> str:
    if name not in metadata:
        raise UsageError(f"there is no {name} in its metadata")
    if not pattern.fullmatch(metadata[name]):
        raise UsageError(f"{name} is {_short(metadata[name])}; allowed: {allowed}")
    return metadata[name]


def _listed(names: list[str]) -> str:
    """Return the first names of a list, and how many more there are; empty for none."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{names[:_LISTED]}{more}" if names else ""


def _short(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; deep nesting
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"
