"""What a run learns of its network: after each epoch, at its end, and with --evaluate-only."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parity.base.files import make_folder, write_whole
from parity.base.progress import say
from parity.base.text import decimal
from parity.twins.decoding.greedy import greedy_search
from parity.twins.spec.networks import NETWORKS
from parity.twins.trace.evaluated import SPLITS
from parity.twins.training.checkpoint import (
    Checkpoint,
    best_checkpoint,
    forget_best,
    keep_best,
)
from parity.twins.training.evaluate import Answers, Search, answer_questions, evaluate
from parity.twins.training.events import EventWriter
from parity.twins.training.strategy import Strategy
from parity.twins.training.summary import Summary
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import TrainedStep

EVALUATION, ANSWERS = "evaluation.json", "answers.jsonl"  # in --out
_SAMPLES = 3  # questions that are answered after each epoch, to be looked at
_SHOWN = 60  # characters of a question, and of an answer


class Validation:
    """Evaluates the weights of a run, and notes what it finds in the run's summary.

    Args:
      strategy: the training; of several processes all evaluate, and rank 0 alone answers.
      text: the text with the splits.
      out: the run's folder.
      most: the largest number of batches of a split to evaluate; None for all, 0 for no
        evaluation.
      search: how questions are answered.
      summary: the summary of the run.
      check: a function called after each batch; it raises an exception to give up.
    """

    def __init__(
        self,
        strategy: Strategy,
        text: TextSource,
        out: Path,
        most: int | None,
        search: Search,
        summary: Summary,
        check: Callable[[], None],
    ):
        self._strategy, self._text, self._most, self._search = strategy, text, most, search
        self._summary, self._check = summary, check
        self._group = strategy.build.group
        self._checkpoints = out / "checkpoints"
        self._decodes = NETWORKS[strategy.spec.network].decodes

    def resume(self, step: int, changed: bool) -> None:
        """Continue from the checkpoint of a step.

        Args:
          step: the step; no later checkpoint can be the best.
          changed: whether the run may be another one now, with another best.
        """
        best = best_checkpoint(self._checkpoints)
        if self._group.rank == 0 and best is not None and (best.step > step or changed):
            forget_best(self._checkpoints)

    def validate(self, trained: TrainedStep, events: EventWriter, speed: float) -> None:
        """Evaluate the validation text, keep the best checkpoint, and answer some questions.

        Args:
          trained: the step that was trained last.
          events: the writer of TensorBoard events.
          speed: the recent speed of training, in real tokens/s.
        """
        if self._most == 0:
            return
        started, step = time.perf_counter(), trained.number + 1
        value, least = self._perplexity("valid", step, events)
        self._summary.valid_perplexity.append(value)
        epoch, rest = divmod(step, self._text.train.batches_per_epoch)
        say(
            f"{f'step {step}' if rest else f'epoch {epoch}'}: validation perplexity "
            f"{decimal(value, 3)}{least}; trained at {speed:,.0f} tokens/s, "
            f"validated in {time.perf_counter() - started:.1f} s"
        )
        if self._group.rank == 0:
            keep_best(self._checkpoints, step, value)
            # the weights of a step that is not settled are about to change
            if self._decodes and trained.settled:
                self._answer_some()
        if self._decodes:
            self._group.barrier()

    def test(self, step: int, events: EventWriter) -> None:
        """Evaluate the test text, and answer its questions if the network can."""
        if self._most == 0:
            return
        value, least = self._perplexity("test", step, events)
        self._summary.test_perplexity = value
        say(f"test perplexity {decimal(value, 3)}{least}")
        if self._decodes:
            if self._group.rank == 0:
                self._answer(step, events)
            self._group.barrier()

    def _perplexity(self, split: str, step: int, events: EventWriter) -> tuple[float, str]:
        """Return the perplexity of a split, and in words the lowest possible one."""
        found = evaluate(self._strategy, self._text, split, self._check, self._most)
        events.perplexity(split, step, found.perplexity)
        best = self._text.best_perplexity(split)
        return found.perplexity, f"; lowest possible {best:.3f}" if best else ""

    def _answer_some(self) -> None:
        """Answer a few questions of the validation text, the same each time."""
        count = self._text.num_sources("valid")
        limit = int(self._strategy.spec.text.target_limit) + 1  # with <eos>
        rows = sorted({each * count // _SAMPLES for each in range(_SAMPLES)})
        source, lengths = self._text.sources("valid", rows)
        longest = self._search.longest or limit
        found = greedy_search(self._strategy.decoder(), source, lengths, longest)
        for row, hypotheses in zip(rows, found, strict=True):
            question, reference = self._text.pair("valid", row)
            answer = self._text.write(hypotheses.best.tokens)
            say(f"  {_line(question)} -> {_line(answer)} (reference: {_line(reference)})")

    def _answer(self, step: int, events: EventWriter) -> None:
        """Answer the test questions and compare the answers with the references."""
        started = time.perf_counter()
        found = answer_questions(self._strategy, self._text, self._search, self._check)
        score, exact = found.bleu, found.exact_share
        self._summary.bleu, self._summary.exact_answers = score, exact
        events.scalar("bleu/test", step, score["score"])
        say(
            f"test BLEU {score['score']:.2f} over {len(found.texts):,} answers, "
            f"{exact:.1%} of them exact; beam {self._search.beam}, "
            f"{time.perf_counter() - started:.1f} s; {score['signature']}"
        )


def _line(text: str) -> str:
    """Return a text, cut off where it is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def evaluate_checkpoint(
    strategy: Strategy,
    text: TextSource,
    checkpoint: Checkpoint,
    out: Path,
    most: int | None,
    search: Search,
    check: Callable[[], None],
) -> None:
    """Evaluate a checkpoint and answer the test questions, without training.

    Of several processes, all evaluate, and rank 0 answers and writes to `out`

        evaluation.json   what was evaluated, perplexities, BLEU, share of exact answers
        answers.jsonl     for each test question a line with its token ids and those of the
                          answer, whether `<eos>` ended it, its score in nats, its text, and the
                          reference

    Args:
      strategy: a strategy that was built with `evaluates`, unless `most` is 0.
      text: the text to evaluate on.
      checkpoint: the weights to evaluate.
      out: the folder to write to.
      most: the largest number of batches of a split to evaluate; None for all.
      search: how the questions are answered.
      check: a function called after each batch; it raises an exception to give up.

    Raises:
      UsageError: if the folder cannot be written.
    """
    group = strategy.build.group
    if group.rank == 0:
        make_folder(out)
    strategy.load(checkpoint.snapshot)
    values: dict[str, Any] = {
        "framework": strategy.framework,
        "strategy": strategy.entry.name,
        "kernels": strategy.build.kernels,
        "replicas": strategy.replicas,
        "dtype": strategy.spec.training.dtype,
        "step": checkpoint.step,
        "perplexity": {},
        "tokens": {},
        "bleu": None,
        "exact_answers": None,
    }
    for split in SPLITS if strategy.build.evaluates else ():
        found = evaluate(strategy, text, split, check, most)
        values["perplexity"][split] = found.perplexity
        values["tokens"][split] = int(found.tokens.sum())
        say(f"step {checkpoint.step}: {split} perplexity {decimal(found.perplexity, 3)}")
    if group.rank > 0:
        return
    if NETWORKS[strategy.spec.network].decodes:
        answers = answer_questions(strategy, text, search, check)
        values["bleu"], values["exact_answers"] = answers.bleu, answers.exact_share
        _write_answers(out / ANSWERS, text, answers)
        say(
            f"step {checkpoint.step}: test BLEU {answers.bleu['score']:.2f} over "
            f"{len(answers.texts):,} answers, {answers.exact_share:.1%} of them exact"
        )
    write_whole(out / EVALUATION, json.dumps(values, indent=2).encode())


def _write_answers(path: Path, text: TextSource, answers: Answers) -> None:
    lines = []
    for row, hypothesis in enumerate(answers.hypotheses):
        source, lengths = text.sources("test", [row])
        line = {
            "source": source[0, : lengths[0]].tolist(),
            "tokens": list(hypothesis.tokens),
            "finished": hypothesis.finished,
            "score": hypothesis.score,
            "answer": answers.texts[row],
            "reference": answers.references[row],
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_whole(path, "".join(lines).encode())
