"""Checkpoints: one safetensors file, from which either framework can resume.

A checkpoint holds the weights and the optimiser's state in canonical layout, the recurrent
state that a stream carries, and as metadata the spec, the next step, and hashes. In its folder
are also the vocabularies, `latest`, which names the newest checkpoint and is written last, and
`best.json`, which says at which step the network was best on the validation text.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from parity.base.errors import UsageError
from parity.base.files import open_regular, read_file, reason, remove_file, write_whole
from parity.base.text import decimal, parse_json
from parity.twins.spec.spec import Spec
from parity.twins.training.checkpoint_contents import Checkpoint as Checkpoint
from parity.twins.training.checkpoint_contents import (
    check_types,
    checked_contents,
    contents_hash,
    contents_of,
)

FORMAT = "2"  # since 2 the spec has a part for text, and vocabularies are in the folder
_NAME = re.compile(r"step-\d{8}\.safetensors")
_BEST = "best.json"
KEPT = 2  # how many checkpoints stay: one to use, and one to fall back on


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint whole or not at all, then `latest`, then remove the oldest ones.

    Returns:
      The path of the file.

    Raises:
      UsageError: if it cannot be written; earlier ones stay.
      MemoryError: if there is no room for its bytes.
    """
    metadata, tensors = contents_of(checkpoint)
    metadata = {"format": FORMAT, **metadata}
    metadata["sha256"] = contents_hash(tensors, metadata)
    path = folder / _name(checkpoint.step)
    # Not by number alone: after resuming from an earlier step, later ones are here too.
    older = [old for old in newest_first(folder) if old != path]
    # room for two copies, or a MemoryError here: the library would end the process
    np.empty(2 * sum(array.nbytes for array in tensors.values()), np.uint8)
    write_whole(path, save(tensors, metadata))
    write_whole(folder / "latest", path.name.encode() + b"\n")
    best = best_checkpoint(folder)
    for old in older[KEPT - 1 :]:
        if best is None or old.name != best.name:
            remove_file(old)
    return path


class Best(NamedTuple):
    """Which checkpoint of a folder was the best on the validation text.

    Attributes:
      name: the name of its file.
      step: the number of steps that it was trained for.
      perplexity: its perplexity on the validation text.
      bleu: the BLEU of its answers to questions of the validation text; None for a network that
        does not decode.
    """

    name: str
    step: int
    perplexity: float
    bleu: float | None = None

    @property
    def quality(self) -> tuple[float, float]:
        """Return what is greater the better it is: BLEU, where there is one, then perplexity.

        A network that goes on learning gets surer of its mistakes too, which perplexity counts,
        while its answers still get better.
        """
        return (-1.0 if self.bleu is None else self.bleu, -self.perplexity)

    def __str__(self) -> str:
        figure = f"perplexity {decimal(self.perplexity, 3)}"
        if self.bleu is not None:
            figure = f"BLEU {self.bleu:.2f}"
        return f"step {self.step}, the best by validation ({figure})"


def best_checkpoint(folder: Path) -> Best | None:
    """Return the best checkpoint of a folder; None if none is known, or its file is gone."""
    try:
        values = parse_json(read_file(folder / _BEST))
        step, perplexity = values["step"], values["valid_perplexity"]
        bleu = values.get("valid_bleu")
        finite = math.isfinite(perplexity) and (bleu is None or math.isfinite(bleu))
        if type(step) is not int or step >= 10**8 or not finite:
            return None
    except (
        OSError,
        UsageError,
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        AttributeError,
    ):
        return None
    best = Best(_name(step), step, perplexity, bleu)
    return best if (folder / best.name).is_file() else None


def keep_best(
    folder: Path, step: int, perplexity: float, bleu: float | None = None
) -> Best | None:
    """Keep the checkpoint of a step from now on if it is better than the best so far.

    Args:
      folder: the folder of the checkpoints, which may lack one of this step.
      step: the number of steps trained.
      perplexity: the perplexity on the validation text after them.
      bleu: the BLEU of answers to its questions; None for a network that does not decode.

    Returns:
      The best checkpoint then; None if there is none.

    Raises:
      UsageError: if this cannot be written down.
    """
    before, found = best_checkpoint(folder), Best(_name(step), step, perplexity, bleu)
    if not (folder / found.name).is_file() or not math.isfinite(perplexity):
        return before
    if before is not None and before.quality >= found.quality:
        return before
    values = {"step": step, "valid_perplexity": perplexity}
    if bleu is not None:
        values["valid_bleu"] = bleu
    kept = newest_first(folder)[:KEPT]
    write_whole(folder / _BEST, json.dumps(values).encode())
    if before is not None and folder / before.name not in kept:
        remove_file(folder / before.name)
    return found


def forget_best(folder: Path) -> None:
    """Forget which checkpoint of a folder is the best; its file stays."""
    (folder / _BEST).unlink(missing_ok=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint.

    Raises:
      UsageError: if it is missing, truncated, damaged, not a checkpoint, or does not hold what
        its spec says.
    """
    try:
        metadata, tensors = _read(path)
        if metadata.pop("sha256", None) != contents_hash(tensors, metadata):
            raise UsageError("damaged: its content does not fit its sha256")
        return checked_contents(metadata, tensors)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such checkpoint") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason(error)}") from None
    except SafetensorError as error:
        raise UsageError(f"{path}: not a whole safetensors file: {error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    open_regular(path).close()
    with safe_open(path, framework="numpy") as file:
        metadata, names = dict(file.metadata() or {}), list(file.keys())
        if metadata.get("format") != FORMAT:
            seen = metadata.get("format")
            raise UsageError(f"not a checkpoint of this project: format is {seen!r}")
        check_types({name: file.get_slice(name).get_dtype() for name in names})
        return metadata, {name: file.get_tensor(name) for name in names}


def write_vocabularies(folder: Path, vocabularies: Mapping[str, bytes]) -> dict[str, str]:
    """Write the vocabularies that are not in a folder yet, and return file name -> sha256.

    Args:
      folder: the folder of the checkpoints.
      vocabularies: file name -> content.

    Raises:
      UsageError: if one cannot be written.
    """
    for name, content in vocabularies.items():
        try:
            written = read_file(folder / name)
        except (OSError, UsageError):  # missing, or a pipe
            written = None
        if written != content:
            write_whole(folder / name, content)
    return {name: hashlib.sha256(text).hexdigest() for name, text in vocabularies.items()}


def read_vocabularies(
    checkpoint: Checkpoint, folder: Path, load: Callable[[dict[str, bytes]], Any] = dict
) -> Any:
    """Read a checkpoint's vocabularies from a folder, and return what `load` makes of them.

    Args:
      checkpoint: names the files and their hashes.
      folder: the folder that holds them.
      load: gets file name -> content. It is called before the hashes are compared, because its
        message about a wrong line says more than that the file is another one.

    Raises:
      UsageError: if one is missing, or is not the one that the checkpoint was trained with.
    """
    found = {}
    for name in checkpoint.vocabularies:
        path = folder / name
        try:
            found[name] = read_file(path)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be read: {error.strerror}; allowed: the file written with "
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
    """Return the newest undamaged checkpoint of a folder, or None if it holds no checkpoint.

    Args:
      folder: where to look.
      notes: gets a line for each damaged checkpoint that was skipped.

    Raises:
      UsageError: if there are checkpoints, but all are damaged.
    """
    if not folder.is_dir():
        return None
    paths = newest_first(folder)
    for path in paths:
        try:
            return load_checkpoint(path)
        except UsageError as error:
            notes.append(f"skipped a checkpoint: {error}")
    if paths:
        raise UsageError(f"{folder}: none of {len(paths)} checkpoints is whole; {notes[0]}")
    return None


def checkpoint_to_use(folder: Path, notes: list[str], newest: bool) -> Checkpoint | None:
    """Return the best checkpoint of a folder, or the newest where none is known to be the best.

    Args:
      folder: where to look.
      notes: gets a line that says which it is, and one for each damaged checkpoint.
      newest: whether to return the newest in any case.

    Raises:
      UsageError: if there are checkpoints, but all are damaged.
    """
    best = None if newest else best_checkpoint(folder)
    if best is not None:
        try:
            found = load_checkpoint(folder / best.name)
        except UsageError as error:
            notes.append(f"skipped the best checkpoint: {error}")
        else:
            newer = newest_first(folder)[0].name != best.name
            notes.append(f"{best}; --newest takes the newest" if newer else str(best))
            return found
    last = newest_checkpoint(folder, notes)
    if last is not None:
        notes.append(f"step {last.step}, the newest")
    return last


def newest_first(folder: Path) -> list[Path]:
    """Return a folder's checkpoints: the one that `latest` names, then the others by step."""
    try:
        latest = read_file(folder / "latest").strip().decode(errors="replace")
    except (OSError, UsageError):
        latest = ""
    found = (path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return sorted(found, key=lambda path: (path.name == latest, path.name), reverse=True)


def check_fits(checkpoint: Checkpoint, spec: Spec, corpus: str, *, allow_change: bool) -> None:
    """Refuse to resume with another spec or another text.

    The length of the training (`epochs`, `patience`) may change. With `allow_change`, so may
    all else that leaves the shapes of the tensors as they are.

    Raises:
      UsageError: listing the differences key by key.
    """
    differences, length = [], ("epochs", "patience")
    if checkpoint.spec.network != spec.network:
        differences.append(("model", "network", checkpoint.spec.network, spec.network))
    for part in ("model", "text", "training"):
        before, now = checkpoint.spec.to_json()[part], spec.to_json()[part]
        differences += [
            (part, name, before[name], now[name])
            for name in before
            if name in now and before[name] != now[name] and name not in length
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


def _name(step: int) -> str:
    return f"step-{step:08d}.safetensors"
