"""The answers check: every framework answers the test questions from the same checkpoints."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import make_folder
from parity.base.progress import Counter
from parity.twins.cli.options import RunOptions
from parity.twins.compare.answers import AnswersRung, read_answers
from parity.twins.compare.verdict import RunVerdict
from parity.twins.run.answer_probes import Probe, answer_probes
from parity.twins.run.start_side import Starter, file_name
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide
from parity.twins.training.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint


def check_answers(
    spec: Spec,
    sides: Mapping[str, TrainedSide],
    trained: Path,
    options: RunOptions,
    starter: Starter,
    verdict: RunVerdict,
) -> None:
    """Let all sides answer the test questions, and add what differs to a verdict.

    Args:
      spec: the spec that the sides were trained with, before the text's sizes were known.
      sides: label -> side, those that answer.
      trained: the folder of the training whose newest checkpoint they answer from.
      options: the options of the run.
      starter: starts the sides.
      verdict: the verdict of the precision in which the checkpoint was trained.

    Raises:
      UsageError: if there is no checkpoint.
    """
    checkpoint = newest_checkpoint(trained / "checkpoints", [])
    if checkpoint is None:
        raise UsageError(f"{trained}: has no checkpoint to answer from")
    assert NETWORKS[spec.network].decodes
    longest = int(spec.text.target_limit) + 1  # with <eos>
    probes = answer_probes(checkpoint.snapshot, options.beam, options.length_penalty, longest)
    with Counter("comparing answers", len(probes), "search") as progress:
        for number, probe in enumerate(probes):
            folder = options.out / "answers" / str(number)
            _answer(sides, spec, checkpoint, probe, folder, starter)
            weights = {
                name.split("/", 1)[1]: array
                for name, array in probe.snapshot.items()
                if name.startswith("weight/")
            }
            rung = AnswersRung(checkpoint.spec, weights, checkpoint.step, verdict)
            given = {label: read_answers(folder / file_name(label)) for label in sides}
            found = rung.compare(given, probe.search)
            progress.update()
            if found is not None:
                verdict.add_check(found)
                return


def _answer(
    sides: Mapping[str, TrainedSide],
    spec: Spec,
    checkpoint: Checkpoint,
    probe: Probe,
    folder: Path,
    starter: Starter,
) -> None:
    """Let all sides answer at the same time, each into a folder named for it."""
    make_folder(folder)
    saved = save_checkpoint(folder, replace(checkpoint, snapshot=probe.snapshot))
    search = probe.search
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                starter.start(
                    side,
                    spec,
                    f"{file_name(label)}-answers-{folder.name}.log",
                    resume=saved,
                    evaluate_only=True,
                    evaluate=0,
                    out=folder / file_name(label),
                    beam=search.beam,
                    length_penalty=search.length_penalty,
                    longest=search.flag,
                )
            )
            for label, side in sides.items()
        ]
        for process in running:
            process.wait()
