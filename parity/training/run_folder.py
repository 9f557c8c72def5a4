"""The folder of a run: what is in it, what may be resumed, what may be replaced."""

import json
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole
from parity.cli.options import TrainOptions
from parity.spec.spec import Spec
from parity.training.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint

# What --overwrite removes from a run's folder; nothing else in it is this project's.
OWN_FILES = (
    "checkpoints/latest",
    "checkpoints/step-????????.safetensors",
    "events/events.out.tfevents.*",
    "losses.csv",
    "summary.json",
    # vocabularies and dictionary, by the names that data/load.py gives them
    "checkpoints/vocabulary.txt",
    "checkpoints/source.vocabulary.txt",
    "checkpoints/target.vocabulary.txt",
    "checkpoints/user_dictionary.txt",
)


def find_checkpoint(options: TrainOptions, notes: list[str]) -> Checkpoint | None:
    """Return the checkpoint to resume from, if any.

    Raises:
      UsageError: if there is none where one was named, or none is whole.
    """
    if options.resume is None:
        return None
    if options.resume == "":
        newest = newest_checkpoint(options.out / "checkpoints", notes)
        if newest is None:
            notes.append(f"{options.out}: holds no checkpoint to resume; starting at step 0")
        return newest
    path = Path(options.resume)
    if not path.is_dir():
        return load_checkpoint(path)
    inner = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = newest_checkpoint(inner, notes)
    if found is None:
        raise UsageError(f"--resume is {options.resume!r}, where there is no checkpoint")
    return found


def check_folder(options: TrainOptions) -> None:
    """See that the run's folder is free, or this run's, and can be written.

    Raises:
      UsageError: if another run is in it without --overwrite, or it cannot be written.
    """
    if options.trace is not None:
        return
    if (options.out / "run.json").exists() and not options.overwrite:
        inside = options.resume is not None and (
            options.resume == ""
            or Path(options.resume).resolve().is_relative_to(options.out.resolve())
        )
        if not inside:
            raise UsageError(
                f"{options.out}: holds a run already; allowed: --resume of it, --overwrite, or "
                "another --out"
            )
    make_folder(options.out / "checkpoints")


def prepare_folder(options: TrainOptions, spec: Spec) -> None:
    """Mark the run's folder as such; with --overwrite, remove the run that is in it."""
    if options.trace is not None:
        return
    marker = options.out / "run.json"
    if marker.exists() and options.overwrite:
        for own in OWN_FILES:
            for path in options.out.glob(own):
                path.unlink()
    write_whole(marker, json.dumps({"spec": spec.to_json()}, indent=2).encode())
