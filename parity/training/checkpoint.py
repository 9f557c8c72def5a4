"""Checkpoints: one safetensors file that either framework writes and either resumes from.

A checkpoint holds the weights and the optimiser's state in canonical layout, the recurrent
state that a stream carries, and as metadata the spec, the next step, and hashes. Beside the
files stand the vocabularies, and `latest`, the name of the newest one, written last.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.spec.parameters import snapshot_shapes
from parity.spec.spec import Spec

FORMAT = "2"  # 2: the spec has a part for text, and vocabularies lie beside
_NAME = re.compile(r"step-\d{8}\.safetensors")
_KEPT = 2  # newest checkpoints that stay: one to use, one to fall back on


@dataclass(frozen=True)
class Checkpoint:
    """All that is needed to go on training as if nothing had happened.

    Attributes:
      spec: network and training.
      step: the next step, counted over epochs: the position in the data.
      snapshot: "weight/...", "optimizer/..." -> array, canonical layout, the run's dtype.
      state: recurrent state to carry on, name -> [batch, layers, hidden], or None.
      corpus: hash of the encoded text and vocabulary.
      framework: which side wrote it.
      vocabularies: file name -> sha256 of the vocabularies that lie beside it.
    """

    spec: Spec
    step: int
    snapshot: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray] | None
    corpus: str
    framework: str
    vocabularies: Mapping[str, str] = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint whole or not at all, then `latest`, then drop the oldest ones.

    Returns:
      The file's path.

    Raises:
      UsageError: if it cannot be written; those written before stay.
    """
    tensors = {name: np.asarray(a, order="C") for name, a in checkpoint.snapshot.items()}
    if checkpoint.state is not None:
        tensors |= {
            f"state/{name}": np.asarray(array, order="C")
            for name, array in checkpoint.state.items()
        }
    metadata = {
        "format": FORMAT,
        "spec": json.dumps(checkpoint.spec.to_json()),
        "step": str(checkpoint.step),
        "corpus": checkpoint.corpus,
        "framework": checkpoint.framework,
        "vocabularies": json.dumps(dict(checkpoint.vocabularies), sort_keys=True),
    }
    metadata["sha256"] = _hash(tensors, metadata)
    path = folder / f"step-{checkpoint.step:08d}.safetensors"
    # Not by number alone: after going back to an earlier step, later ones lie here too.
    older = [old for old in _newest_first(folder) if old != path]
    write_whole(path, save(tensors, metadata))
    write_whole(folder / "latest", path.name.encode() + b"\n")
    for old in older[_KEPT - 1 :]:
        old.unlink()
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint.

    Raises:
      UsageError: if it is missing, truncated, changed, of another kind, or lacks a tensor.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UsageError(f"{path}: no such checkpoint") from None
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: not a whole safetensors file: {error}") from None
    if metadata.get("format") != FORMAT:
        seen = metadata.get("format")
        raise UsageError(f"{path}: not a checkpoint of this project: format is {seen!r}")
    if metadata.pop("sha256", None) != _hash(tensors, metadata):
        raise UsageError(f"{path}: damaged: its content does not fit its sha256")
    spec = Spec.from_json(json.loads(metadata["spec"]))
    shapes = snapshot_shapes(spec)
    held = {name for name in tensors if not name.startswith("state/")}
    if held != set(shapes):
        missing, extra = sorted(set(shapes) - held), sorted(held - set(shapes))
        raise UsageError(
            f"{path}: tensors missing: {missing or 'none'}; extra: {extra or 'none'}"
        )
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise UsageError(f"{path}: {name} is {tensors[name].shape}; its spec says {shape}")
    state = {name.split("/", 1)[1]: a for name, a in tensors.items() if name not in held}
    snapshot = {name: tensors[name] for name in shapes}
    step, corpus = int(metadata["step"]), metadata["corpus"]
    vocabularies = json.loads(metadata["vocabularies"])
    return Checkpoint(
        spec, step, snapshot, state or None, corpus, metadata["framework"], vocabularies
    )


def read_vocabularies(
    checkpoint: Checkpoint, folder: Path, load: Callable[[dict[str, bytes]], Any] = dict
) -> Any:
    """Return what `load` makes of a checkpoint's vocabularies in a folder.

    Args:
      load: gets file name -> content. It is called before the files are held against the
        checkpoint: which line of a file is at fault says more than that it is another file.

    Raises:
      UsageError: if one is missing, or is not that with which the checkpoint was trained.
    """
    found = {}
    for name in checkpoint.vocabularies:
        path = folder / name
        try:
            found[name] = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be read: {error.strerror}; allowed: the file written beside "
                "the checkpoint"
            ) from None
    loaded = load(found)
    for name, expected in checkpoint.vocabularies.items():
        seen = hashlib.sha256(found[name]).hexdigest()
        if seen != expected:
            lines = len(found[name].splitlines())
            raise UsageError(
                f"{folder / name}: does not fit the checkpoint: {lines:,} lines with sha256 "
                f"{seen[:12]}; allowed: the file it was trained with, sha256 {expected[:12]}"
            )
    return loaded


def newest_checkpoint(folder: Path, notes: list[str]) -> Checkpoint | None:
    """Return the newest checkpoint of a folder that is whole, or None if it holds none.

    Args:
      notes: gets a line for each damaged checkpoint that was passed over.

    Raises:
      UsageError: if there are checkpoints, but not one is whole.
    """
    if not folder.is_dir():
        return None
    paths = _newest_first(folder)
    for path in paths:
        try:
            return load_checkpoint(path)
        except UsageError as error:
            notes.append(f"passed over a checkpoint: {error}")
    if paths:
        raise UsageError(f"{folder}: none of {len(paths)} checkpoints is whole; {notes[0]}")
    return None


def _newest_first(folder: Path) -> list[Path]:
    """Return a folder's checkpoints: that which `latest` names, then by step, highest first."""
    try:
        latest = (folder / "latest").read_bytes().strip().decode(errors="replace")
    except OSError:
        latest = ""
    found = (path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return sorted(found, key=lambda path: (path.name == latest, path.name), reverse=True)


def check_fits(checkpoint: Checkpoint, spec: Spec, corpus: str, *, allow_change: bool) -> None:
    """Refuse to resume under another spec or on another text.

    How long to train (`epochs`) may change. With `allow_change`, so may all else that leaves
    the tensors' shapes alone.

    Raises:
      UsageError: listing the differences key by key.
    """
    differences = []
    if checkpoint.spec.network != spec.network:
        differences.append(("model", "network", checkpoint.spec.network, spec.network))
    for part in ("model", "text", "training"):
        before, now = checkpoint.spec.to_json()[part], spec.to_json()[part]
        differences += [
            (part, name, before[name], now[name])
            for name in before
            if name in now and before[name] != now[name] and name != "epochs"
        ]
    if corpus != checkpoint.corpus:
        differences.append(("training", "corpus", checkpoint.corpus[:12], corpus[:12]))
    fixed = {"dtype", "optimizer"}
    if allow_change:
        differences = [d for d in differences if d[0] == "model" or d[1] in fixed]
    if differences:
        listed = ", ".join(
            f"{name} {old!r} there, {new!r} here" for _, name, old, new in differences
        )
        raise UsageError(f"the checkpoint is of another run: {listed}")


def _hash(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
