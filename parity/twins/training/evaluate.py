"""Evaluates a network: after each epoch, at the end of a run, and with --evaluate-only.

That is its loss and perplexity on a split, and its answers to the questions.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import read_file, write_whole
from parity.base.progress import say
from parity.base.text import counted as in_words
from parity.base.text import decimal, escaped
from parity.twins.cli.options import TrainOptions
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.evaluation import bleu, exact_share, find_answers
from parity.twins.decoding.hypotheses import Hypothesis
from parity.twins.decoding.token_by_token import greedy_search
from parity.twins.processes.gathering import local_batch, whole_batch
from parity.twins.spec.initial import zero_state
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.step_arrays import StepInputs, step_inputs
from parity.twins.trace.evaluated import SPLITS, Evaluation
from parity.twins.training.checkpoint import (
    Best,
    Checkpoint,
    best_checkpoint,
    forget_best,
    keep_best,
    load_checkpoint,
)
from parity.twins.training.checkpoint_contents import shared_checkpoint
from parity.twins.training.events import EventWriter
from parity.twins.training.loss_table import (
    ValidationRow,
    read_validations,
    write_validations,
)
from parity.twins.training.strategy import Strategy
from parity.twins.training.summary import Summary
from parity.twins.training.text_source import TextSource
from parity.twins.training.train_steps import perplexity

_ANSWERED = 500  # the most questions of the validation text that are answered each time
_SAMPLES = 3  # of these questions, to be looked at
_SHOWN = 60  # characters of a question, and of an answer


def evaluate(
    strategy: Strategy,
    text: TextSource,
    split: str,
    check: Callable[[], None],
    most: int | None = None,
    keep: bool = False,
) -> Evaluation:
    """Evaluate the current weights on a split.

    Args:
      strategy: a strategy that was built with `evaluates`.
      text: the text with the split.
      split: "train", "valid" or "test".
      check: a function called after each batch; it raises an exception to give up.
      most: the largest number of batches to evaluate; see `batches_to_evaluate`. None: all.
      keep: whether to keep the batches in the result; otherwise `inputs` is empty, and memory
        does not grow with the text.
    """
    batches, spec, group = getattr(text, split), strategy.spec, strategy.build.group
    total, counted = 0.0, 0
    kept, losses, tokens = list[StepInputs](), list[float](), list[int]()
    state: Mapping[str, np.ndarray] | None = None
    for step in batches_to_evaluate(batches.batches_per_epoch, most):
        batch = local_batch(batches, step, group, strategy.replicas)
        inputs = step_inputs(spec, step, batch, train=False)
        if inputs.num_tokens == 0:
            continue
        if state is None or not inputs.carry:
            state = zero_state(spec, inputs.rows)
        result = strategy.evaluate(inputs, state)
        state = result.state
        total += result.loss * inputs.num_tokens
        counted += inputs.num_tokens
        losses.append(result.loss)
        tokens.append(inputs.num_tokens)
        if keep:
            arrays = whole_batch(group, inputs)
            kept += [] if arrays is None else [StepInputs(arrays, inputs.carry)]
        check()
    reported = perplexity(total / counted)
    return Evaluation(kept, np.array(tokens, np.int64), np.array(losses), reported)


def batches_to_evaluate(batches: int, most: int | None) -> list[int]:
    """Return which batches of a split are evaluated: the first ones, and always the last.

    The last batch is often a partial one, on which mistakes show that no whole batch shows.

    Args:
      batches: the number of batches in the split.
      most: the largest number of batches to evaluate, at least 1; None for all.
    """
    if most is None or most >= batches:
        return list(range(batches))
    return [*range(most - 1), batches - 1]


@dataclass(frozen=True)
class Answers:
    """The answers to all questions of the test text.

    Attributes:
      hypotheses: the best hypothesis for each question.
      texts: the answers as readable text.
      references: the reference answers.
      bleu: the BLEU of the answers: score (0 to 100), signature and number of sentences.
      exact_share: the share of the answers that equal the reference; see `exact_share`.
    """

    hypotheses: Sequence[Hypothesis]
    texts: Sequence[str]
    references: Sequence[str]
    bleu: dict[str, Any]
    exact_share: float


def answer_questions(
    strategy: Strategy, text: TextSource, options: TrainOptions, check: Callable[[], None]
) -> Answers:
    """Answer the test questions by beam search.

    Args:
      strategy: a strategy whose network decodes.
      text: the text with the questions.
      options: how many hypotheses beam search keeps, and how long an answer may be.
      check: a function called after each batch; it raises an exception to give up.
    """
    search = partial(
        beam_search,
        strategy.decoder(),
        beam=options.beam,
        length_penalty=options.length_penalty,
        max_tokens=_longest(strategy, options),
    )
    hypotheses = find_answers(search, text, "test", range(text.num_sources("test")), check)
    texts = [text.write(hypothesis.tokens) for hypothesis in hypotheses]
    references = text.references("test")
    segmenter = strategy.spec.text.target_segmenter
    return Answers(
        hypotheses,
        texts,
        references,
        bleu(texts, references, segmenter),
        exact_share(texts, references, segmenter),
    )


def _longest(strategy: Strategy, options: TrainOptions) -> int:
    """Return the most tokens of an answer, `<eos>` included."""
    return options.longest or int(strategy.spec.text.target_limit) + 1


class Validation:
    """Evaluates the weights of a run; of several processes all do, and rank 0 alone answers.

    Args:
      strategy: the training, built with `evaluates` unless --evaluate is 0.
      text: the text with the splits.
      options: the options of the run: its folder, how many batches of a split to evaluate, and
        how questions are answered.
      summary: the summary of the run, which gets perplexities and BLEU, those that were
        measured before it was resumed first.
      events: the writer of TensorBoard events, which gets them too.
      check: a function called after each batch; it raises an exception to give up.

    Attributes:
      best: on rank 0, the run's best checkpoint, once there is one.
    """

    def __init__(
        self,
        strategy: Strategy,
        text: TextSource,
        options: TrainOptions,
        summary: Summary,
        events: EventWriter,
        check: Callable[[], None],
    ):
        self._strategy, self._text, self._options = strategy, text, options
        self._summary, self._events = summary, events
        self._check, self._group = check, strategy.build.group
        self._checkpoints = options.out / "checkpoints"
        self.best: Best | None = None
        self._sample_file, self._samples = options.out / "samples.txt", list[tuple[int, str]]()
        self._table, self._rows = options.out / "validations.csv", list[ValidationRow]()
        self._decodes = NETWORKS[strategy.spec.network].decodes

    def resume(self, step: int, changed: bool) -> None:
        """Continue from the checkpoint of a step.

        Args:
          step: the step; no later checkpoint can be the best.
          changed: whether the run may be another one now, with another best.

        Raises:
          UsageError: if validations.csv is damaged.
        """
        if self._group.rank > 0:
            return
        if self._table.exists() and not changed:
            self._rows = [row for row in read_validations(self._table) if row.step <= step]
            for row in self._rows:
                self._note(row)
                if row.step == step:  # which the events of this part take the place of
                    self._events.scalars(step, _curves(row))
        self.best = best_checkpoint(self._checkpoints)
        if self.best is not None and (self.best.step > step or changed):
            forget_best(self._checkpoints)
            self.best = None
        if self._sample_file.exists():
            text = read_file(self._sample_file).decode(errors="replace")
            samples = re.findall(r"^step (\d{1,8}): (.*)\n", text, re.MULTILINE)
            self._samples = [(int(at), line) for at, line in samples if int(at) <= step]

    def _note(self, row: ValidationRow) -> None:
        self._summary.valid_perplexity.append(row.perplexity)
        if self._decodes:
            self._summary.valid_bleu.append(row.bleu)

    def ends_early(self, step: int, last: int) -> bool:
        """Return on every rank whether --patience ends the training before its last step.

        Args:
          step: the number of steps trained.
          last: the number after which the training ends in any case.
        """
        patience, best = self._strategy.spec.training.patience, self.best
        validates = self._options.evaluate != 0 and self._options.trace is None
        if not patience or not validates or step >= last:
            return False
        told = None
        if self._group.rank == 0:
            most = patience * self._text.train.batches_per_epoch
            told = {"over": np.array(best is not None and step - best.step >= most)}
        over = bool(self._group.broadcast(told)["over"])
        if over:
            epochs = in_words(patience, "epoch")
            say(f"stopped at step {step}: no better validation for {epochs} (--patience)")
        return over

    def lacks(self, step: int) -> bool:
        """Return on every rank whether a step ended an epoch that nothing was validated after.

        A run that was stopped while it validated resumes so.
        """
        told = None
        if self._group.rank == 0:
            told = {"lacks": np.array(not self._rows or self._rows[-1].step < step)}
        ends = step > 0 and step % self._text.train.batches_per_epoch == 0
        return bool(self._group.broadcast(told)["lacks"]) and ends

    def validate(self, step: int, settled: bool, speed: float | None = None) -> None:
        """Evaluate the validation text, answer its questions, and keep the best checkpoint.

        Args:
          step: the number of steps trained.
          settled: whether the weights are those after these steps.
          speed: the recent speed of training, in real tokens/s; None: nothing was trained.
        """
        if self._options.evaluate == 0:
            return
        started = time.perf_counter()
        value, least = self._perplexity("valid")
        score, words = None, ""
        # the weights of a step that is not settled are about to change
        if self._decodes and self._group.rank == 0 and settled:
            score = self._answer_some(step)
            words = f", BLEU {score:.2f}"
        row = ValidationRow(step, value, score)
        self._note(row)
        self._events.scalars(step, _curves(row))
        epoch, rest = divmod(step, self._text.train.batches_per_epoch)
        say(
            f"{f'step {step}' if rest else f'epoch {epoch}'}: validation perplexity "
            f"{decimal(value, 3)}{least}{words}; "
            f"{'' if speed is None else f'trained at {speed:,.0f} tokens/s, '}"
            f"validated in {time.perf_counter() - started:.1f} s"
        )
        if self._group.rank == 0:
            self.best = keep_best(self._checkpoints, step, value, score)
            if score is not None:
                lines = (f"step {at}: {line}\n" for at, line in self._samples)
                write_whole(self._sample_file, "".join(lines).encode())
            self._rows.append(row)  # last: without it, this is done again
            write_validations(self._table, self._rows)
        if self._decodes:
            self._group.barrier()

    def conclude(self, step: int, over: bool) -> None:
        """Test the network if its training is over; say what it answers to a few questions.

        From a test on, the weights are the best ones of the run, unless --newest is given.

        Args:
          step: the number of steps trained.
          over: whether no step of the training is left.
        """
        if over and self._options.evaluate != 0:
            self._test(step)
        if self._samples and self._summary.steps:
            shown = self._samples[-1][0] if self.best is None else self.best.step
            say(f"answers at step {shown}; {self._sample_file} has those of every validation:")
            for at, line in self._samples:
                if at == shown:
                    say(f"  {line}")

    def _test(self, step: int) -> None:
        """Evaluate the test text, and answer its questions if the network can."""
        self._summary.tested_step = self._use_best(step)
        value, least = self._perplexity("test")
        self._summary.test_perplexity = value
        say(f"test perplexity {decimal(value, 3)}{least}")
        curves = {"perplexity/test": value}
        if self._decodes:
            if self._group.rank == 0:
                curves["bleu/test"] = self._answer()
            self._group.barrier()
        self._events.scalars(step, curves)

    def _use_best(self, step: int) -> int:
        """Load the run's best weights, unless they are those of `step`; return their step."""
        best, found = None if self._options.newest else self.best, None
        if best is not None and best.step != step:
            try:
                found = load_checkpoint(self._checkpoints / best.name)
                say(f"{best}; --newest takes the newest")
            except UsageError as error:
                say(f"skipped the best checkpoint: {error}")
        found = shared_checkpoint(self._group, found)
        if found is None:
            return step
        self._strategy.load(found.snapshot)
        return found.step

    def _perplexity(self, split: str) -> tuple[float, str]:
        """Return the perplexity of a split, and in words the lowest possible one."""
        most = self._options.evaluate
        value = evaluate(self._strategy, self._text, split, self._check, most).perplexity
        best = self._text.best_perplexity(split)
        return value, f"; lowest possible {best:.3f}" if best else ""

    def _answer_some(self, step: int) -> float:
        """Answer questions of the validation text greedily, the same each time; return BLEU."""
        spec, count = self._strategy.spec, self._text.num_sources("valid")
        most = min(count, _ANSWERED)
        rows = [each * count // most for each in range(most)]
        longest = _longest(self._strategy, self._options)
        search = partial(greedy_search, self._strategy.decoder(), max_tokens=longest)
        found = find_answers(search, self._text, "valid", rows, self._check)
        answers = [self._text.write(each.tokens) for each in found]
        pairs = [self._text.pair("valid", row) for row in rows]
        self._samples = [each for each in self._samples if each[0] < step]
        for at in sorted({each * most // _SAMPLES for each in range(_SAMPLES)}):
            question, reference = map(_line, pairs[at])
            words = f"{question} -> {_line(answers[at])} (reference: {reference})"
            self._samples.append((step, escaped(words)))
        references = [reference for _, reference in pairs]
        return float(bleu(answers, references, spec.text.target_segmenter)["score"])

    def _answer(self) -> float:
        """Answer the test questions, compare the answers with the references; return BLEU."""
        started = time.perf_counter()
        found = answer_questions(self._strategy, self._text, self._options, self._check)
        score, exact = found.bleu, found.exact_share
        self._summary.bleu, self._summary.exact_answers = score, exact
        _write_answers(self._options.out / "answers.jsonl", self._text, found)
        say(
            f"test BLEU {score['score']:.2f} over {len(found.texts):,} answers, "
            f"{exact:.1%} of them exact; beam {self._options.beam}, "
            f"{time.perf_counter() - started:.1f} s; {score['signature']}"
        )
        return float(score["score"])


def evaluate_only(
    strategy: Strategy,
    text: TextSource,
    options: TrainOptions,
    checkpoint: Checkpoint,
    check: Callable[[], None],
) -> None:
    """Evaluate a checkpoint and answer the test questions, without training.

    Rank 0 writes to --out

        evaluation.json   what was evaluated, perplexities, BLEU, share of exact answers
        answers.jsonl     for each test question a line with its token ids and those of the
                          answer, whether `<eos>` ended it, its score in nats, its text, and
                          the reference

    Raises:
      UsageError: if the folder cannot be written.
    """
    group, at = strategy.build.group, f"step {checkpoint.step}"
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
        found = evaluate(strategy, text, split, check, options.evaluate)
        values["perplexity"][split] = found.perplexity
        values["tokens"][split] = int(found.tokens.sum())
        say(f"{at}: {split} perplexity {decimal(found.perplexity, 3)}")
    if group.rank > 0:
        return
    if NETWORKS[strategy.spec.network].decodes:
        answers = answer_questions(strategy, text, options, check)
        values["bleu"], values["exact_answers"] = answers.bleu, answers.exact_share
        _write_answers(options.out / "answers.jsonl", text, answers)
        say(
            f"{at}: test BLEU {answers.bleu['score']:.2f} over {len(answers.texts):,} "
            f"answers, {answers.exact_share:.1%} of them exact"
        )
    write_whole(options.out / "evaluation.json", json.dumps(values, indent=2).encode())


def _curves(row: ValidationRow) -> dict[str, float]:
    """Return the points of a validation in the curves of TensorBoard."""
    curves = {"perplexity/valid": row.perplexity}
    return curves if row.bleu is None else curves | {"bleu/valid": row.bleu}


def _line(text: str) -> str:
    """Return a text, cut off where it is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


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
