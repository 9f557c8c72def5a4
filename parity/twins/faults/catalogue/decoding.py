"""Faults of decoding: greedy and beam search with the weights after the last step."""

from parity.twins.faults.edits import joined, mirrored, shared
from parity.twins.faults.fault import Fault

_HYPOTHESES, _BEAM_FILE = "parity/twins/decoding/hypotheses.py", "parity/twins/decoding/beam.py"
_BEAM = ("decode/beam_tokens", "decode/beam_finished", "decode/beam_scores")
_ANY = ("decode/greedy_*",)

_SEARCHED = "what a search decodes is no step of training"

FAULTS = (
    Fault(
        "no-length-penalty",
        "finished answers are ranked without the length penalty",
        "Decoding",
        "bahdanau, fed",
        _BEAM,
        shared(
            _BEAM_FILE,
            (
                "+ log_probs[:, PAIR_EOS_ID], penalty, ended=True)",
                "+ log_probs[:, PAIR_EOS_ID], 1.0, ended=True)",
            ),
        ),
        unconfirmable_reason=_SEARCHED,
    ),
    Fault(
        "length-without-end",
        "the length penalty does not count the end of the answer",
        "Decoding",
        "bahdanau, fed",
        _BEAM,
        shared(
            _BEAM_FILE,
            (
                "        penalty = length_penalty_of(length, length_penalty)\n",
                "        penalty = length_penalty_of(length - 1, length_penalty)\n",
            ),
        ),
        unconfirmable_reason=_SEARCHED,
    ),
    Fault(
        "end-for-go",
        "decoding starts with <eos>, not with <go>",
        "Decoding",
        "bahdanau, fed",
        _ANY,
        shared(_HYPOTHESES, ("np.full(rows, PAIR_GO_ID)", "np.full(rows, PAIR_EOS_ID)")),
        unconfirmable_reason=_SEARCHED,
    ),
    Fault(
        "go-and-end-swapped",
        "<go> and <eos> are exchanged",
        "Decoding",
        "bahdanau, fed",
        _ANY,
        joined(
            shared(
                _HYPOTHESES,
                (
                    "import PAIR_EOS_ID, PAIR_GO_ID\n",
                    "import PAIR_EOS_ID as PAIR_GO_ID, PAIR_GO_ID as PAIR_EOS_ID\n",
                ),
                ("FIRST_PRODUCED = PAIR_EOS_ID ", "FIRST_PRODUCED = PAIR_GO_ID "),
            ),
            *(
                shared(file, ("import PAIR_EOS_ID\n", "import PAIR_GO_ID as PAIR_EOS_ID\n"))
                for file in (_BEAM_FILE, "parity/twins/decoding/token_by_token.py")
            ),
        ),
        unconfirmable_reason=_SEARCHED,
    ),
    Fault(
        "beams-keep-their-state",
        "hypotheses that were reordered keep the states of the rows they come to lie in",
        "Decoding",
        "bahdanau, fed",
        _BEAM,
        shared(
            _HYPOTHESES,
            (
                "        self._state = {name: array[rows] for name, array in self._state.items()}\n",
                "        self._state = {\n"
                '            name: array[np.arange(len(rows)) % len(array)] if name == "h" else array[rows]\n'
                "            for name, array in self._state.items()\n"
                "        }\n",
            ),
        ),
        unconfirmable_reason=_SEARCHED,
    ),
    Fault(
        "beam-one-short",
        "beam search follows one hypothesis less than asked for",
        "Decoding",
        "bahdanau, fed",
        _BEAM,
        shared(
            _BEAM_FILE,
            (
                "        log_probs, live.log_probs, live.sentences, beam\n",
                "        log_probs, live.log_probs, live.sentences, beam - 1\n",
            ),
        ),
        unconfirmable_reason=_SEARCHED,
    ),
    Fault(
        "attention-of-last-step",
        "decoding goes on from the attention's output of the start",
        "Decoding",
        "scaled, fed",
        _ANY,
        mirrored(
            "networks.py",
            (
                '        "weights": weights,\n        "fed": fed,\n',
                '        "weights": weights,\n        "fed": state["fed"] + 0 * fed,\n',
            ),
        ),
        unconfirmable_reason=_SEARCHED,
    ),
    Fault(
        "decoder-without-bias",
        "decoding projects without the bias",
        "Decoding",
        "general",
        _ANY,
        mirrored(
            "networks.py",
            (
                "    return log_softmax(logits), {\n",
                "    zeros = tf.zeros_like(outputs[0])\n"
                '    logits = logits - linear(zeros, "softmax", model.target_vocabulary_size)\n'
                "    return log_softmax(logits), {\n",
            ),
        ),
        unconfirmable_reason=_SEARCHED,
    ),
)
