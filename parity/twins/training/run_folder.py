"""The folder of a run: finds a checkpoint in it, and replaces an earlier run if allowed."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import (
    CONFIG,
    make_folder,
    read_file,
    remove_file,
    remove_unfinished,
    write_whole,
)
from parity.base.locks import only_writer
from parity.base.text import parse_json
from parity.twins.cli.config import check_config, write_config
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.fields import flag
from parity.twins.spec.spec import Spec
from parity.twins.training.checkpoint import (
    Checkpoint,
    check_fits,
    checkpoint_to_use,
    load_checkpoint,
    newest_checkpoint,
    newest_first,
)

# The files of a run, which --overwrite removes; any other file in the folder is not ours.
RUN_FILES = (
    "checkpoints/latest",
    "checkpoints/best.json",
    "checkpoints/step-????????.safetensors",
    "events/events.out.tfevents.*",
    "losses.csv",
    "validations.csv",
    "samples.txt",
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


class RunFolder:
    """The folder of a run, and what its options let it do there.

    Attributes:
      path: the folder, `--out`.
      is_written: whether the run writes to it: all do but recorded ones without checkpoints.
        What is profiled or evaluated writes there too, but is no run.

    Args:
      options: the command line.
      run: the name of a run that goes on after it has lost a process; empty for any other. It
        goes on from what it has written: what is in the folder before that is of another run.
    """

    def __init__(self, options: TrainOptions, run: str = ""):
        self.path, self._run = options.out, run
        records_alone = options.trace is not None and options.checkpoint_every is None
        only = options.evaluate_only or options.profile is not None
        self.is_written = not (only or records_alone)
        if run and self.is_written and _name_of_run(self.path) == run:
            saved = bool(newest_first(self.path / "checkpoints"))
            resume = "" if saved else options.resume
            options = replace(options, resume=resume, overwrite=not saved)
        self._options = options

    @contextmanager
    def opened(
        self, spec: Spec, content_hash: str, notes: list[str]
    ) -> Iterator[Checkpoint | None]:
        """Keep other runs out of the folders that this one writes to; yield its checkpoint.

        That is the one to resume or to evaluate, or None to start at step 0. Of a folder, the
        newest is resumed, and the best is evaluated. What an earlier run was killed while
        writing is removed.

        Args:
          spec: the network and its training.
          content_hash: the hash of the text.
          notes: messages for the user, to which this adds some.

        Raises:
          UsageError: if another run writes to a folder, or is in it and may not be replaced; if
            it cannot be written; or if the checkpoint is missing, damaged, of another run, or
            past the last step.
        """
        with ExitStack() as stack:
            for folder, name in self._written_folders():
                stack.enter_context(only_writer(folder, name))
                for pattern in ("run.json", CONFIG, *RUN_FILES):
                    path = folder / pattern
                    remove_unfinished(path.parent, path.name)
            checkpoint = self._checkpoint(notes)
            if checkpoint is not None:
                self._check_fits(checkpoint, spec, content_hash)
            self._check_writable()
            yield checkpoint

    def _written_folders(self) -> Iterator[tuple[Path, str]]:
        """Yield the folders that a run writes to, each once, and the options that name them."""
        trace, profile = self._options.trace, self._options.profile
        out = self.path if self.is_written or self._options.evaluate_only else None
        seen: list[Path] = []
        for name, folder in (("out", out), ("trace", trace), ("profile", profile)):
            if folder is not None and folder.resolve() not in seen:
                seen.append(folder.resolve())
                yield folder, flag(name)

    def _checkpoint(self, notes: list[str]) -> Checkpoint | None:
        options, folder = self._options, self.path / "checkpoints"
        if options.resume is None:
            return None
        if options.resume:
            path = Path(options.resume)
            if not path.is_dir():
                return load_checkpoint(path)
            folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        if options.evaluate_only:
            found = checkpoint_to_use(folder, notes, options.newest)
        else:
            found = newest_checkpoint(folder, notes)
        if found is None and options.resume:
            raise UsageError(f"--resume is {options.resume!r}, where there is no checkpoint")
        if found is None and options.evaluate_only:
            raise UsageError(
                f"{self.path}: has no checkpoint to evaluate; allowed: a checkpoint, or "
                "the folder of a run, after --resume"
            )
        if found is None:
            notes.append(f"{self.path}: has no checkpoint to resume; starting at step 0")
        return found

    def _check_fits(self, checkpoint: Checkpoint, spec: Spec, content_hash: str) -> None:
        options = self._options
        check_fits(checkpoint, spec, content_hash, allow_change=options.allow_change)
        past = options.steps is not None and options.steps < checkpoint.step
        if past and not options.evaluate_only:
            raise UsageError(
                f"--steps is {options.steps}, but the checkpoint is at step {checkpoint.step}; "
                f"allowed: >= {checkpoint.step}"
            )

    def _check_writable(self) -> None:
        """Check that the folder can be written and has no other run in it."""
        trace, resume = self._options.trace, self._options.resume
        if trace is not None:
            check_config(trace)
        if not self.is_written:
            return
        if (self.path / "run.json").exists() and not self._options.overwrite:
            inside = resume is not None and (
                resume == "" or Path(resume).resolve().is_relative_to(self.path.resolve())
            )
            if not inside:
                raise UsageError(
                    f"{self.path}: already has a run; allowed: --resume, --overwrite, or "
                    "another --out"
                )
        check_config(self.path)
        make_folder(self.path / "checkpoints")

    def prepare(self, spec: Spec, config: TrainOptions, asked: Spec) -> None:
        """Write run.json, which marks a run's folder; with --overwrite, remove the old run.

        The run's config.yaml is written there, and to the folder of its trace.

        Args:
          spec: the network and its training.
          config: the options that config.yaml is to say, with all defaults filled in.
          asked: the spec that it is to say, as it was asked for.
        """
        marker, name = self.path / "run.json", {"name": self._run} if self._run else {}
        if self.is_written and self._options.overwrite and marker.exists():
            for pattern in RUN_FILES:
                for path in self.path.glob(pattern):
                    remove_file(path)
        for folder in (self._options.trace, self.path if self.is_written else None):
            if folder is not None:
                write_config(folder, config, asked)
        if self.is_written:
            values = {"spec": spec.to_json(), **name}
            write_whole(marker, json.dumps(values, indent=2).encode())


def _name_of_run(folder: Path) -> str | None:
    """Return the name of the run that is in a folder; None if there is none."""
    try:
        values = parse_json(read_file(folder / "run.json"))
        return str(values["name"])
    except (OSError, UsageError, ValueError, KeyError, TypeError):
        return None
