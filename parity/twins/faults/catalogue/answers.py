"""Faults of the answers to the test questions, and of how they are scored."""

from parity.twins.faults.edits import joined, shared
from parity.twins.faults.fault import Fault

_BEAM, _ANSWERS = "parity/twins/decoding/beam.py", "parity/twins/training/answers.py"
_SCORING = "parity/twins/decoding/evaluation.py"
_ANY = ("answers/tokens", "answers/finished", "answers/scores")

FAULTS = (
    Fault(
        "end-forced-at-the-limit",
        "an answer that the limit cuts off is taken for one that ended by itself",
        "Decoding",
        "bahdanau, fed",
        ("answers/finished",),
        shared(
            _BEAM,
            (
                "_finish(live, finished, live.log_probs, penalty, ended=False)",
                "_finish(live, finished, live.log_probs, penalty, ended=True)",
            ),
        ),
        check="answers",
    ),
    Fault(
        "search-ends-with-a-full-pool",
        "beam search stops as soon as it has enough finished answers",
        "Decoding",
        "bahdanau, fed",
        _ANY,
        shared(
            _BEAM,
            (
                "if len(self._kept) < self._beam or bound > -self._losses[-1]:",
                "if len(self._kept) < self._beam:",
            ),
        ),
        check="answers",
    ),
    Fault(
        "search-ends-a-step-soon",
        "beam search stops one token before the limit",
        "Decoding",
        "general",
        _ANY,
        shared(
            _BEAM,
            (
                "    check_max_tokens(max_tokens)\n",
                "    check_max_tokens(max_tokens)\n    max_tokens = max(1, max_tokens - 1)\n",
            ),
        ),
        check="answers",
    ),
    Fault(
        "limit-without-the-end",
        "the limit of an answer does not count its end",
        "Decoding",
        "general",
        _ANY,
        shared(
            _ANSWERS,
            (
                "limit = int(strategy.spec.text.target_limit) + 1",
                "limit = int(strategy.spec.text.target_limit)",
            ),
        ),
        check="answers",
    ),
    Fault(
        "ties-to-the-higher-id",
        "of two tokens that are equally probable, beam search prefers the higher id",
        "Decoding",
        "scaled, fed",
        ("answers/tokens",),
        shared(
            _BEAM,
            (
                "order = np.lexsort((columns, rows,",
                "order = np.lexsort((-columns, rows,",
            ),
        ),
        check="answers",
    ),
    Fault(
        "later-of-equal-answers",
        "of two finished answers with one score, the later one is ranked higher",
        "Decoding",
        "scaled, fed",
        ("answers/tokens",),
        shared(
            _BEAM,
            (
                "place = bisect_right(self._losses, -score)",
                "place = sum(loss < -score for loss in self._losses)",
            ),
        ),
        check="answers",
    ),
    Fault(
        "answers-without-length-penalty",
        "the test questions are answered without the length penalty",
        "Decoding",
        "bahdanau, fed",
        _ANY,
        shared(_ANSWERS, ("        options.length_penalty,\n", "        0.0,\n")),
        check="answers",
    ),
    Fault(
        "answers-with-a-beam-of-one",
        "the test questions are answered with a single hypothesis",
        "Decoding",
        "bahdanau",
        _ANY,
        shared(_ANSWERS, ("        options.beam,\n", "        1,\n")),
        check="answers",
    ),
    Fault(
        "answers-from-initial-weights",
        "the test questions are answered with the initial weights",
        "Decoding",
        "bahdanau",
        _ANY,
        shared(
            "parity/twins/training/evaluate_only.py",
            ("    strategy.load(checkpoint.snapshot)\n", ""),
        ),
        check="answers",
    ),
    Fault(
        "answers-joined-without-spaces",
        "the tokens of an answer are joined without spaces",
        "Decoding",
        "general",
        ("answers/answer", "answers/bleu"),
        shared(
            "data/segmenters.py",
            (
                "        return join(tokens, self.target_segmenter)\n",
                '        return "".join(tokens)\n',
            ),
        ),
        check="answers",
    ),
    Fault(
        "scored-against-the-questions",
        "BLEU compares the answers with the questions",
        "Decoding",
        "general",
        ("answers/reference",),
        shared(
            "data/load.py",
            ("return [pairs.texts(row)[1] for", "return [pairs.texts(row)[0] for"),
        ),
        check="answers",
    ),
    Fault(
        "bleu-of-another-tokenizer",
        "BLEU splits tokenized answers as it splits English",
        "Decoding",
        "general",
        ("answers/bleu",),
        shared(_SCORING, ("tokenize=_TOKENIZERS[segmenter],", 'tokenize="13a",')),
        check="answers",
    ),
    Fault(
        "bleu-in-lower-case",
        "BLEU ignores case where case was learnt",
        "Decoding",
        "general",
        ("answers/bleu",),
        shared(_SCORING, ('lowercase=segmenter == "english",', "lowercase=True,")),
        check="answers",
    ),
    Fault(
        "beginnings-count-as-exact",
        "an answer counts as exact if the reference begins with it",
        "Decoding",
        "general",
        ("answers/exact_share",),
        shared(
            _SCORING,
            (
                "same = [letters(a) == letters(b) for",
                "same = [letters(b).startswith(letters(a)[:1]) for",
            ),
        ),
        check="answers",
    ),
    Fault(
        "last-questions-left-out",
        "the questions after the last whole batch are not answered",
        "Decoding",
        "scaled, fed",
        ("answers/source",),
        joined(
            shared(
                _SCORING,
                (
                    "    count = text.num_sources(split)\n",
                    "    count = text.num_sources(split) // 4 * 4\n",
                ),
            ),
            shared(
                _ANSWERS,
                (
                    'references = text.references("test")\n',
                    'references = text.references("test")[: len(texts)]\n',
                ),
            ),
        ),
        check="answers",
    ),
)
