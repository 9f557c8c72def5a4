"""`--evaluate-only`: evaluates a checkpoint and answers the test questions, without training.

In --out it writes

    evaluation.json   what was evaluated, perplexities, BLEU, share of exact answers
    answers.jsonl     for each test question a line with its token ids and those of the answer,
                      whether `<eos>` ended it, its score in nats, its text, and the reference
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from parity.base.errors import Interrupted
from parity.base.files import make_folder, write_whole
from parity.base.progress import say
from parity.base.text import decimal
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.networks import NETWORKS
from parity.twins.trace.evaluated import SPLITS
from parity.twins.training.answers import Answers, answer_questions
from parity.twins.training.checkpoint import Checkpoint
from parity.twins.training.evaluate import evaluate
from parity.twins.training.rank_agreement import StopRequest, catch_signals
from parity.twins.training.strategy import Strategy
from parity.twins.training.text_source import TextSource

EVALUATION, ANSWERS = "evaluation.json", "answers.jsonl"  # in --out


def evaluate_checkpoint(
    strategy: Strategy, text: TextSource, checkpoint: Checkpoint, options: TrainOptions
) -> dict[str, Any]:
    """Evaluate a checkpoint, and write what was found to `options.out`.

    Of several processes, all evaluate, and rank 0 answers and writes.

    Args:
      strategy: a strategy that was built with `evaluates`, unless `options.evaluate` is 0.
      text: the text to evaluate on.
      checkpoint: the weights to evaluate.
      options: the command line.

    Returns:
      The content of evaluation.json; empty on ranks other than 0.

    Raises:
      UsageError: if the folder cannot be written.
      Interrupted: after SIGINT or SIGTERM.
    """
    with catch_signals() as request:
        return _evaluate(strategy, text, checkpoint, options, partial(_check, request))


def _check(request: StopRequest) -> None:
    if request.signal:
        raise Interrupted("stopped while evaluating", request.signal)


def _evaluate(
    strategy: Strategy,
    text: TextSource,
    checkpoint: Checkpoint,
    options: TrainOptions,
    check: Callable[[], None],
) -> dict[str, Any]:
    group = strategy.build.group
    if group.rank == 0:
        make_folder(options.out)
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
        found = evaluate(strategy, text, split, check, most=options.evaluate)
        values["perplexity"][split] = found.perplexity
        values["tokens"][split] = int(found.tokens.sum())
        say(f"step {checkpoint.step}: {split} perplexity {decimal(found.perplexity, 3)}")
    if group.rank > 0:
        return {}
    if NETWORKS[strategy.spec.network].decodes:
        answers = answer_questions(strategy, text, options, check)
        values["bleu"], values["exact_answers"] = answers.bleu, answers.exact_share
        _write_answers(options.out / ANSWERS, text, answers)
        say(
            f"step {checkpoint.step}: test BLEU {answers.bleu['score']:.2f} over "
            f"{len(answers.texts):,} answers, {answers.exact_share:.1%} of them exact"
        )
    write_whole(options.out / EVALUATION, json.dumps(values, indent=2).encode())
    return values


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
