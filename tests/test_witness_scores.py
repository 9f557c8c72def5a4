"""The numbers that a run reports of itself, worked out once more from what they are made of.

Perplexity, BLEU and the share of exact answers are computed by code that both sides share, so a
mistake there would move both sides alike. What is tested is what `run_training` reports.
"""

import math
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from oracle_side import OracleStrategy, small_spec, text, train_with

from data.load import load_pair_text
from parity.twins.cli.options import TrainOptions
from parity.twins.decoding.evaluation import bleu, exact_share
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.spec.step_arrays import StepResult
from parity.twins.training.loss_table import read_losses


class Idle(OracleStrategy):
    """Trains nothing. The loss of an evaluated batch is a function of its number of tokens.

    Attributes:
      evaluated: the number of tokens and the loss per token of each evaluated batch.
    """

    def __init__(self, spec, build):
        super().__init__(spec, build)
        self.evaluated = []

    def step(self, inputs, state, learning_rate, record=False):
        losses = np.array([3.0, 1.0]) / inputs.loss_divisor  # together 4 nats in each batch
        return StepResult(losses, state, 1.0, {})

    def evaluate(self, inputs, state):
        assert not inputs.masks
        tokens = int(np.sum(inputs.batch["lengths"]))
        loss = 0.5 + 0.1 * tokens
        self.evaluated.append((tokens, loss))
        return StepResult(np.array([0.25 * loss, 0.75 * loss]), state, 0.0, {})


def run(make, spec, parts, out, **options):
    """Run a training; return its strategy and its summary."""
    options = TrainOptions(out=out, replicas=2, threads=1, **options)
    return train_with(make, spec, options, parts)


def perplexity_by_hand(evaluated):
    """Return e to the mean loss of a token, whichever batch the token is in."""
    total = math.fsum(tokens * loss for tokens, loss in evaluated)
    return math.e ** (total / sum(tokens for tokens, _ in evaluated))


def test_perplexity_is_that_of_the_mean_token_not_of_the_mean_batch(tmp_path):
    spec = small_spec(batching="sentences", epochs=2)
    idle, summary = run(Idle, spec, text(spec), tmp_path / "run")
    first, second, test = (idle.evaluated[start : start + 2] for start in (0, 2, 4))
    assert len(idle.evaluated) == 6
    assert len({tokens for tokens, _ in first}) == 2  # or the two means were the same
    assert summary.valid_perplexity == pytest.approx(
        [perplexity_by_hand(first), perplexity_by_hand(second)], rel=1e-14
    )
    assert summary.test_perplexity == pytest.approx(perplexity_by_hand(test), rel=1e-14)


@pytest.mark.parametrize("loss_per", ["token", "row"])
def test_the_table_of_losses_is_in_nats_per_real_token(tmp_path, loss_per):
    spec = small_spec(batching="sentences", epochs=1, loss_per=loss_per)
    run(Idle, spec, text(spec), tmp_path / "run")
    rows = read_losses(tmp_path / "run" / "losses.csv")
    counts = [int(text(spec).train.batch(step).lengths.sum()) for step in range(4)]
    assert [step for step, _, _ in rows] == [0, 1, 2, 3]
    assert [tokens for _, _, tokens in rows] == counts
    assert [loss for _, loss, _ in rows] == pytest.approx([4 / n for n in counts], rel=1e-14)


# answers


def papineni(answers, references):
    """Return the BLEU of tokenised text, as in Papineni et al. 2002, section 2.3.

    The counts of 1- to 4-grams are summed over all sentences, each clipped to the reference's;
    answers that are shorter than the references together are penalised.
    """
    clipped, total, lengths = [0] * 4, [0] * 4, [0, 0]
    for answer, reference in zip(answers, references, strict=True):
        words = answer.split(), reference.split()
        lengths = [before + len(each) for before, each in zip(lengths, words, strict=True)]
        for n in range(4):
            grams, allowed = (
                Counter(tuple(each[k : k + n + 1]) for k in range(len(each) - n))
                for each in words
            )
            clipped[n] += sum((grams & allowed).values())
            total[n] += sum(grams.values())
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    precisions = [math.log(c / t) for c, t in zip(clipped, total, strict=True)]
    return 100 * brevity * math.exp(sum(precisions) / 4)


ANSWERS = ["the cat sat on the mat", "there is a red car here", "I do not know"]
REFERENCES = ["the cat sat on the red mat", "there is a red car in here", "I do not know that"]


@pytest.mark.parametrize(
    ("segmenter", "answers", "references", "options"),
    [
        ("chinese", ["今天天气很好。"], ["今天的天气很好。"], {"tokenize": "zh"}),
        ("spaces", ANSWERS, REFERENCES, {"tokenize": "none"}),
        (
            "english",
            ["Tom isn't here today."],
            ["tom isn't here, Today."],
            {"tokenize": "13a", "lowercase": True},
        ),
    ],
)
def test_bleu_is_sacrebleus_own(segmenter, answers, references, options):
    expected = sacrebleu.corpus_bleu(answers, [references], **options)
    assert bleu(answers, references, segmenter)["score"] == expected.score


def test_exact_answers_by_hand():
    answers = ["你好", "我 知道", "他来了", "她走了", "好"]
    references = ["你好", "我知道", "她来了", "她走了。", "好\u3000"]
    assert exact_share(answers, references, "chinese") == 3 / 5
    assert exact_share(["It’s  me", "IT'S ME", "it is me"], ["It's me"] * 3, "english") == 2 / 3
    assert exact_share(["It's", "it's"], ["it's", "it's"], "spaces") == 1 / 2


class Echo:
    """A decoding model that answers a question with the question itself."""

    def __init__(self, words):
        self.words = words

    def start(self, source, source_lengths):
        return {"source": source, "left": source_lengths.copy(), "time": 0 * source_lengths}

    def step(self, tokens, state):
        rows = np.arange(len(tokens))
        time = np.minimum(state["time"], state["source"].shape[1] - 1)
        wanted = np.where(state["left"] > 0, state["source"][rows, time], 2)
        log_probs = np.full((len(rows), self.words), -20.0)
        log_probs[rows, wanted] = -0.001
        return log_probs, state | {"left": state["left"] - 1, "time": state["time"] + 1}


class Echoing(Idle):
    def decoder(self):
        return Echo(self.spec.model.target_vocabulary_size)


def test_the_answers_of_a_run_are_scored_with_their_own_references(tmp_path):
    """150 questions are answered in several batches; an echo is right where they are equal."""
    draw = np.random.default_rng(6)
    folder, right = tmp_path / "pairs", []
    folder.mkdir()
    for split, count in (("train", 150), ("valid", 20), ("test", 150)):
        lines = []
        for number in range(count):
            words = [f"w{k}" for k in draw.integers(0, 12, draw.integers(4, 9))]
            answer = words if number % 3 == 0 else [*words[:3], "w0", *words[4:]]
            lines.append((" ".join(words), " ".join(answer)))
        (folder / f"{split}.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in lines))
        right = lines
    model = Seq2seqSpec(99, 99, 4, 4)
    parts = PairText("spaces", "spaces", share_vocabulary=True, source_limit=9, target_limit=9)
    spec = Spec("seq2seq", model, parts, TrainSpec(batch_size=50, optimizer="adam", epochs=1))
    loaded = load_pair_text(folder, tmp_path / "cache", spec.values())
    _, summary = run(Echoing, spec.replace(**loaded.sizes), loaded, tmp_path / "run")
    questions, references = ([pair[side] for pair in right] for side in (0, 1))
    expected = papineni(questions, references)
    assert 10 < expected < 95
    assert summary.bleu["score"] == pytest.approx(expected, rel=1e-12)
    assert summary.bleu["sentences"] == 150
    equal = sum(question == reference for question, reference in right)
    assert summary.exact_answers == equal / 150
