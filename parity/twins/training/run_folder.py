"""The folder of a run: finds a checkpoint in it, and replaces an earlier run if allowed."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.fields import flag
from parity.base.files import CONFIG, make_folder, remove_file, remove_unfinished, write_whole
from parity.base.locks import only_writer
from parity.twins.cli.config import check_config, write_config
from parity.twins.cli.options import TrainOptions
from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.spec import Spec
from parity.twins.training.checkpoint import (
    Checkpoint,
    check_fits,
    load_checkpoint,
    newest_checkpoint,
    newest_first,
)
from parity.twins.training.text_source import TextSource

# The files of a run, which --overwrite removes; any other file in the folder is not ours.
RUN_FILES = (
    "checkpoints/latest",
    "checkpoints/best.json",
    "checkpoints/step-????????.safetensors",
    "events/events.out.tfevents.*",
    "losses.csv",
    "schedule.jsonl",
    "summary.json",
    "evaluation.json",
    "answers.jsonl",
    # vocabularies and dictionary, under the names that data/load.py gives them
    "checkpoints/vocabulary.txt",
    "checkpoints/source.vocabulary.txt",
    "checkpoints/target.vocabulary.txt",
    "checkpoints/user_dictionary.txt",
)


def find_checkpoint(options: TrainOptions, notes: list[str]) -> Checkpoint | None:
    """Return the checkpoint to resume from, or None to start at step 0.

    Args:
      options: the options of the run.
      notes: messages for the user, to which this adds some.

    Raises:
      UsageError: if --resume names a place without a checkpoint, or every checkpoint is
        damaged.
    """
    if options.resume is None:
        return None
    if options.resume == "":
        newest = newest_checkpoint(options.out / "checkpoints", notes)
        if newest is None:
            notes.append(f"{options.out}: has no checkpoint to resume; starting at step 0")
        return newest
    path = Path(options.resume)
    if not path.is_dir():
        return load_checkpoint(path)
    inner = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = newest_checkpoint(inner, notes)
    if found is None:
        raise UsageError(f"--resume is {options.resume!r}, where there is no checkpoint")
    return found


def checkpoint_to_resume(
    text: TextSource, spec: Spec, options: TrainOptions, notes: list[str]
) -> Checkpoint | None:
    """Return the checkpoint that --resume names, checked against the rest of the command line.

    Raises:
      UsageError: if it is missing, of another run, or past the last step.
    """
    checkpoint = find_checkpoint(options, notes)
    if checkpoint is None:
        if options.evaluate_only:
            raise UsageError(
                f"{options.out}: has no checkpoint to evaluate; allowed: a checkpoint, or the "
                "folder of a run, after --resume"
            )
        return None
    check_fits(checkpoint, spec, text.content_hash, allow_change=options.allow_change)
    past = options.steps is not None and options.steps < checkpoint.step
    if past and not options.evaluate_only:
        raise UsageError(
            f"--steps is {options.steps}, but the checkpoint is at step {checkpoint.step}; "
            f"allowed: >= {checkpoint.step}"
        )
    return checkpoint


def as_started_again(options: TrainOptions, run: str) -> TrainOptions:
    """Return the options by which a run goes on that has lost a process.

    They are the given ones, unless the run has begun to write to its folder: what is found
    there before that is of another run.

    Args:
      options: the options of the run, as they were given.
      run: the name of the run, as `prepare_folder` writes it; empty for one that nobody starts
        again.
    """
    if not run or not writes_run(options) or _name_of_run(options.out) != run:
        return options
    if newest_first(options.out / "checkpoints"):
        return replace(options, resume="", overwrite=False)
    return replace(options, overwrite=True)  # it has saved nothing


def _name_of_run(folder: Path) -> str | None:
    """Return the name of the run that is in a folder; None if there is none."""
    try:
        values = json.loads((folder / "run.json").read_text())
        return str(values["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def writes_run(options: TrainOptions) -> bool:
    """Return whether a run writes to --out: all do but recorded ones without checkpoints.

    What is profiled or evaluated writes there too, but is no run.
    """
    if options.evaluate_only or options.profile is not None:
        return False
    return options.trace is None or options.checkpoint_every is not None


@contextmanager
def locked_folder(options: TrainOptions, group: ProcessGroup) -> Iterator[None]:
    """Keep other runs out of the folders that this one writes to; on the rank that writes.

    What an earlier run in them was killed while writing is removed.

    Raises:
      UsageError: naming the process of another run that writes to it.
    """
    with ExitStack() as stack:
        for folder, name in _written_folders(options) if group.rank == 0 else ():
            stack.enter_context(only_writer(folder, name))
            for pattern in ("run.json", CONFIG, *RUN_FILES):
                path = folder / pattern
                remove_unfinished(path.parent, path.name)
        yield


def _written_folders(options: TrainOptions) -> Iterator[tuple[Path, str]]:
    """Yield the folders that a run writes to, each once, and the options that name them."""
    out = options.out if writes_run(options) or options.evaluate_only else None
    seen: list[Path] = []
    for name, folder in (("out", out), ("trace", options.trace), ("profile", options.profile)):
        if folder is not None and folder.resolve() not in seen:
            seen.append(folder.resolve())
            yield folder, flag(name)


def check_folder(options: TrainOptions) -> None:
    """Check that the run's folder can be written and has no other run in it.

    Raises:
      UsageError: if there is another run and --overwrite is not given, or the folder cannot be
        written.
    """
    if options.trace is not None:
        check_config(options.trace)
    if not writes_run(options):
        return
    if (options.out / "run.json").exists() and not options.overwrite:
        inside = options.resume is not None and (
            options.resume == ""
            or Path(options.resume).resolve().is_relative_to(options.out.resolve())
        )
        if not inside:
            raise UsageError(
                f"{options.out}: already has a run; allowed: --resume, --overwrite, or another "
                "--out"
            )
    check_config(options.out)
    make_folder(options.out / "checkpoints")


def prepare_folder(
    options: TrainOptions,
    spec: Spec,
    run: str = "",
    config: tuple[TrainOptions, Spec] | None = None,
) -> None:
    """Write run.json, which marks the folder of a run; with --overwrite, remove the old run.

    The run's config.yaml is written there, and to the folder of its trace.

    Args:
      options: the options of the run.
      spec: the network and its training.
      run: the name of the run, if it has one; see `as_started_again`.
      config: what config.yaml is to say: options with all defaults filled in, and the spec that
        was asked for; by default `options` and `spec`.
    """
    if options.trace is not None:
        make_folder(options.trace)
        write_config(options.trace, *config or (options, spec))
    if not writes_run(options):
        return
    marker = options.out / "run.json"
    if marker.exists() and options.overwrite:
        for pattern in RUN_FILES:
            for path in options.out.glob(pattern):
                remove_file(path)
    write_config(options.out, *config or (options, spec))
    values = {"spec": spec.to_json()} | ({"name": run} if run else {})
    write_whole(marker, json.dumps(values, indent=2).encode())
