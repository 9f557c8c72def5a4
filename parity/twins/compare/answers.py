"""The answers rung: every side answers the test questions from one and the same checkpoint.

Token ids, scores, text, BLEU and the share of exact answers are compared with those of the
oracle, which answers in float64 from the same weights, and are scored again here. Where the
oracle decided by less than rounding can change, a side may have decided the other way, as on
the decode rung.

`--evaluate-only` writes what is compared: see parity/twins/training/evaluate.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import read_file
from parity.base.text import parse_json
from parity.compare.coverage import Fact
from parity.compare.findings import Finding
from parity.compare.tensors import ORACLE, Mismatch, Place
from parity.trace.tolerances import TABLE
from parity.twins.compare.decoded_answers import (
    DecodedFinding,
    compare_decoded,
    score_recorded,
    scores_again,
)
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES
from parity.twins.compare.step_coverage import answer_facts
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.evaluation import bleu, exact_share
from parity.twins.decoding.hypotheses import Hypotheses, Hypothesis
from parity.twins.oracle.decode import OracleModel
from parity.twins.oracle.rounding import rounding_of_scores
from parity.twins.oracle.training import recorded_weights
from parity.twins.spec.spec import Spec
from parity.twins.trace.decoded import decode_tensors

Tensors = Mapping[str, np.ndarray]

_SENTENCES_PER_BATCH = 64  # as many as the sides search for at a time
_LEAST_BLEU = 1e-9  # a score is a function of counts; only the last digits may differ


@dataclass(frozen=True)
class SideAnswers:
    """What a side wrote about the test questions.

    Attributes:
      lines: for each question what answers.jsonl says.
      bleu: BLEU as the side reports it: score, signature and number of sentences.
      exact_share: the share of exact answers as the side reports it.
    """

    lines: Sequence[Mapping[str, Any]]
    bleu: Mapping[str, Any]
    exact_share: float


@dataclass(frozen=True)
class AnswerSettings:
    """How the questions were answered.

    Attributes:
      name: what reports call these answers.
      beam: the number of hypotheses that beam search kept.
      length_penalty: the exponent of the length penalty.
      longest: the largest number of tokens in an answer, `<eos>` included.
      exact: whether no decision depends on rounding, so that ties must be broken alike.
      usual: whether `longest` is the limit that a side uses if none is given.
    """

    name: str
    beam: int
    length_penalty: float
    longest: int
    exact: bool = False
    usual: bool = False

    @property
    def settings(self) -> tuple[int, float, int]:
        """Return the beam, the length penalty, and the longest answer."""
        return self.beam, self.length_penalty, self.longest

    @property
    def flag(self) -> int | None:
        """Return what `--longest` is to say: nothing where a side's own limit is to be seen."""
        return None if self.usual else self.longest


def read_answers(folder: Path) -> SideAnswers:
    """Return what `--evaluate-only` wrote to a folder.

    Raises:
      UsageError: if it cannot be read.
    """
    try:
        values = parse_json(read_file(folder / "evaluation.json"))
        text = read_file(folder / "answers.jsonl").decode()
        lines = [parse_json(line) for line in text.splitlines()]
        found = SideAnswers(lines, values["bleu"], values["exact_answers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder}: answers that cannot be read: {error}") from None
    if (
        not all(isinstance(each, dict) for each in (found.bleu, *lines))
        or type(found.exact_share) is not float
    ):
        raise UsageError(f"{folder}: not the answers and scores that --evaluate-only writes")
    return found


class AnswersRung:
    """Compares the sides' answers.

    Args:
      spec: what was trained, with the sizes of the real vocabularies.
      snapshot: holds the weights that all sides answered from.
      step: the number of steps that they were trained for.
    """

    def __init__(self, spec: Spec, snapshot: Tensors, step: int):
        self._spec, self._step = spec, step
        self._snapshot = snapshot
        self._oracle = OracleModel(spec.model, recorded_weights(snapshot))

    def compare(
        self, answers: Mapping[str, SideAnswers], search: AnswerSettings
    ) -> list[Finding]:
        """Compare the answers of all sides, up to the first mismatch; with the oracle's, all.

        Args:
          answers: label -> what that side wrote.
          search: how the questions were answered.
        """
        findings: list[Finding] = []
        for finding in self._findings(answers, search):
            if finding.sides[1] != ORACLE and any(each.mismatches for each in findings):
                break
            named = tuple(self._named(each, search) for each in finding.mismatches)
            findings.append(replace(finding, mismatches=named))
        return findings

    def _findings(
        self, answers: Mapping[str, SideAnswers], search: AnswerSettings
    ) -> Iterator[Finding]:
        if wrong := self._compare_questions(answers):
            yield from _problems(wrong)
            return  # all that follows is of the same questions
        asked = _questions(next(iter(answers.values())))
        expected, margins, facts = self._expected(asked, search)
        for side, given in answers.items():
            found = self._compare_tokens(side, given, asked, expected, margins, search)
            yield replace(found, facts=facts)
            facts = ()
        for side, given in answers.items():
            yield from _problems(self._compare_scoring(side, given))
        yield from _problems(self._compare_texts(answers))

    def _compare_questions(self, answers: Mapping[str, SideAnswers]) -> Mismatch | None:
        """Compare the questions and references, of which the oracle has none of its own."""
        (first, ours), *others = answers.items()
        for side, given in others:
            sides = first, side
            if len(ours.lines) != len(given.lines):
                counts = f"{len(ours.lines)} against {len(given.lines)}"
                return self._problem(sides, "answers/source", (), f"{counts} questions")
            for name in ("source", "reference"):
                for row, (a, b) in enumerate(zip(ours.lines, given.lines, strict=True)):
                    if a[name] != b[name]:
                        said = f"{a[name]!r} against {b[name]!r}"
                        return self._problem(sides, f"answers/{name}", (row,), said)
        return None

    def _expected(
        self, asked: tuple[np.ndarray, np.ndarray], search: AnswerSettings
    ) -> tuple[dict[str, np.ndarray], list[float], tuple[Fact, ...]]:
        """Return the oracle's answers, the margin of each, and the cases that were met."""
        every: list[Hypotheses] = []
        for start in range(0, len(asked[0]), _SENTENCES_PER_BATCH):
            rows = slice(start, start + _SENTENCES_PER_BATCH)
            every += beam_search(self._oracle, asked[0][rows], asked[1][rows], *search.settings)
        expected = decode_tensors(
            asked[0], asked[1], {"beam": every}, *search.settings, best=True
        )
        return expected, [found.margin for found in every], tuple(answer_facts(every))

    def _compare_tokens(
        self,
        side: str,
        given: SideAnswers,
        asked: tuple[np.ndarray, np.ndarray],
        expected: Tensors,
        margins: list[float],
        search: AnswerSettings,
    ) -> DecodedFinding:
        sides, dtype = (side, ORACLE), self._spec.training.dtype
        longest = max([search.longest, *(len(line["tokens"]) for line in given.lines)])
        if longest > search.longest:
            seen = f"an answer of {longest} tokens; allowed: {search.longest}"
            wrong = self._problem(sides, "answers/tokens", (), seen)
            return DecodedFinding(sides, mismatches=(wrong,))
        answers = {"beam": [*map(_given, given.lines)]}
        recorded = decode_tensors(asked[0], asked[1], answers, *search.settings, best=True)
        if search.exact:
            margins = [np.inf] * len(margins)
        compare: Callable[..., DecodedFinding] = partial(
            compare_decoded,
            recorded,
            expected,
            {"beam": margins},
            sides,
            self._step,
            TABLE[dtype, "answers"],
            score_recorded(self._oracle, recorded, self._spec.model.target_vocabulary_size),
            searches=("beam",),
        )
        found = compare()
        if found.first is not None:
            again = partial(scores_again, self._spec.model, recorded, searches=("beam",))
            rounding = rounding_of_scores(self._snapshot, dtype, again)
            found = compare(least=ONE_STEP_TIMES["forward"] * rounding)
        distance = found.rungs["decode"]
        return DecodedFinding(
            sides,
            {"answers": replace(distance, where=_renamed(distance.where))},
            tuple(replace(each, place=_renamed(each.place)) for each in found.mismatches),
            ties=tuple(replace(tie, place=_renamed(tie.place)) for tie in found.ties),
        )

    def _compare_scoring(self, side: str, given: SideAnswers) -> Mismatch | None:
        """Score the side's own answers again, and compare with what it reports."""
        texts = [line["answer"] for line in given.lines]
        references = [line["reference"] for line in given.lines]
        segmenter = self._spec.text.target_segmenter
        again = bleu(texts, references, segmenter)
        sides = side, f"{side} scored anew"
        if given.bleu["signature"] != again["signature"]:
            said = f"{given.bleu['signature']} against {again['signature']}"
            return self._problem(sides, "answers/bleu", (), said)
        for name, seen, expected in (
            ("sentences", given.bleu["sentences"], again["sentences"]),
            ("bleu", given.bleu["score"], again["score"]),
            ("exact_share", given.exact_share, exact_share(texts, references, segmenter)),
        ):
            if abs(seen - expected) > _LEAST_BLEU:
                values = dict(zip(sides, (float(seen), float(expected)), strict=True))
                place = Place(self._step, f"answers/{name}", ())
                return Mismatch(sides, place, values, _LEAST_BLEU, 1, 1, within=side)
        return None

    def _compare_texts(self, answers: Mapping[str, SideAnswers]) -> Mismatch | None:
        """Compare the text of answers whose tokens are equal on two sides."""
        (first, ours), *others = answers.items()
        for side, given in others:
            for row, (a, b) in enumerate(zip(ours.lines, given.lines, strict=True)):
                if a["tokens"] == b["tokens"] and a["answer"] != b["answer"]:
                    said = f"{a['answer']!r} against {b['answer']!r}"
                    return self._problem((first, side), "answers/answer", (row,), said)
        return None

    def _problem(
        self, sides: tuple[str, str], name: str, index: tuple[int, ...], problem: str
    ) -> Mismatch:
        return Mismatch(sides, Place(self._step, name, index), problem=problem)

    def _named(self, found: Mismatch, search: AnswerSettings) -> Mismatch:
        side, other = found.sides
        who = f"{side} differs from the oracle" if other == ORACLE else "the sides differ"
        if found.within:
            who = f"{found.within} reports a score that its own answers do not have"
        note = f"{who} in the answers to the test questions ({search.name})"
        return replace(found, check="answers", note=note)


def _problems(found: Mismatch | None) -> list[Finding]:
    return [] if found is None else [Finding(found.sides, mismatches=(found,))]


def _questions(answers: SideAnswers) -> tuple[np.ndarray, np.ndarray]:
    """Return the questions, int64 [sentences, source_time], and their lengths."""
    lengths = np.array([len(line["source"]) for line in answers.lines], np.int64)
    source = np.zeros((len(lengths), max(1, lengths.max(initial=0))), np.int64)
    for row, line in enumerate(answers.lines):
        source[row, : lengths[row]] = line["source"]
    return source, lengths


def _given(line: Mapping[str, Any]) -> Hypotheses:
    """Return an answer that a side wrote, as what a search found."""
    answer = tuple(line["tokens"]), line["finished"], np.nan, line["score"]
    return Hypotheses((Hypothesis(*answer),), np.inf)


def _renamed(place: Any) -> Any:
    """Return the place of an answer: it is not one that a trace records."""
    if place is None:
        return None
    return replace(place, tensor=place.tensor.replace("decode/beam_", "answers/"))
