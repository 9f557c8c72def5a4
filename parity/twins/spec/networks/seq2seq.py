"""The sequence-to-sequence network: its sizes, and the names and shapes of its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parity.base.errors import UsageError
from parity.base.special_tokens import PAIR_UNKNOWN_ID
from parity.twins.spec.fields import check_fields, option
from parity.twins.spec.networks.network import (
    PAIRS,
    SEGMENTERS,
    TARGET_SEGMENTER,
    Axes,
    Choices,
    Network,
    Parameter,
    Preset,
    cell_parameters,
)
from parity.twins.spec.training import TrainSpec


# fmt: off
@dataclass(frozen=True)
class Seq2seqSpec:
    """The sizes and kind of the network: an encoder, and a decoder that attends to its output.

    Sources: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473;
    Luong et al. 2015, arXiv:1508.04025; Wu et al. 2016, arXiv:1609.08144.
    """

    source_vocabulary_size: int = option(10_000, "largest size of the vocabulary of the questions, including the four special tokens; the most frequent tokens are kept", at_least=5)
    target_vocabulary_size: int = option(10_000, "largest size of the vocabulary of the answers, including the four special tokens; the most frequent tokens are kept", at_least=5)
    embedding_size: int = option(128, "width of both embeddings", at_least=1)
    hidden_size: int = option(256, "number of units in each recurrent layer", at_least=1)
    num_layers: int = option(1, "number of recurrent layers in the encoder, and as many in the decoder", at_least=1, at_most=1000)
    cell: str = option("lstm", "recurrent cell", choices=("lstm", "gru"))
    attention: str = option("general", "how the attention scores the positions of the source: Luong's dot or general, scaled (general times a trained scalar), or bahdanau", choices=("dot", "general", "scaled", "bahdanau"))
    input_feeding: bool = option(False, "feed the attention into the decoder's cell: Luong's output of the previous step, or Bahdanau's context of the current step")
    bidirectional: bool = option(False, "run the encoder's bottom layer in both directions, with half of the units in each; --hidden-size must then be even")
    keep: float = option(1.0, "probability that dropout keeps a unit; 1 means no dropout", above=0, at_most=1)
    initial_scale: float = option(0.1, "initial weights are uniform in [-scale, scale); the trained scalar of scaled attention starts around 1", above=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.bidirectional and self.hidden_size % 2:
            raise UsageError(
                f"--hidden-size is {self.hidden_size}; allowed with --bidirectional: an even number"
            )


@dataclass(frozen=True)
class PairText:
    """How pairs of a question and an answer become batches."""

    source_segmenter: str = option("chinese", "how questions are split into tokens", choices=SEGMENTERS)
    target_segmenter: str = option("chinese", TARGET_SEGMENTER, choices=SEGMENTERS)
    hmm: bool = option(True, "let jieba guess words that are not in its dictionary")
    share_vocabulary: bool = option(False, "use one vocabulary for questions and answers, counted over both")
    source_limit: int = option(30, "greatest number of tokens in a question; pairs with a longer question are left out, and their number is reported", at_least=1)
    target_limit: int = option(30, "greatest number of tokens in an answer, not counting <eos>; pairs with a longer answer are left out, and their number is reported", at_least=1)
    turns: int = option(0, "number of earlier turns of a conversation that stand before a question, as far as --source-limit leaves room; each question must be the answer of the line before", at_least=0)
    split_by: str = option("source", "how pairs are divided into training, validation and test text: source never puts the same source sentence into two of them, block keeps blocks of lines together, as dialogues need", choices=("source", "block"))
    train_lines: int = option(0, "train on only the first N lines (sentences or pairs) of the training text; 0 means all; the vocabulary is counted over all in any case", at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)
# fmt: on


def _parameters(model: Seq2seqSpec) -> tuple[Parameter, ...]:
    hidden, cell = model.hidden_size, model.cell
    table = [
        Parameter("encoder/embed/table", (model.source_vocabulary_size, model.embedding_size))
    ]
    for layer in range(model.num_layers):
        inputs, name = hidden if layer else model.embedding_size, f"encoder/{cell}_{layer}"
        if layer == 0 and model.bidirectional:
            table += cell_parameters(f"{name}/forward", cell, inputs, hidden // 2)
            table += cell_parameters(f"{name}/backward", cell, inputs, hidden // 2)
        else:
            table += cell_parameters(name, cell, inputs, hidden)
    table.append(
        Parameter("decoder/embed/table", (model.target_vocabulary_size, model.embedding_size))
    )
    fed = hidden if model.input_feeding else 0
    for layer in range(model.num_layers):
        inputs = hidden if layer else model.embedding_size + fed
        table += cell_parameters(f"decoder/{cell}_{layer}", cell, inputs, hidden)
    if model.attention == "bahdanau":
        table.append(Parameter("attention/query_kernel", (hidden, hidden)))
    if model.attention != "dot":
        table.append(Parameter("attention/memory_kernel", (hidden, hidden)))
    if model.attention == "bahdanau":
        table.append(Parameter("attention/score_kernel", (hidden,)))
    if model.attention == "scaled":
        table.append(Parameter("attention/scale", (1,), mean=1.0))
    return (
        *table,
        Parameter("attention/output_kernel", (2 * hidden, hidden)),
        Parameter("softmax/kernel", (hidden, model.target_vocabulary_size)),
        Parameter("softmax/bias", (model.target_vocabulary_size,)),
    )


def _masks(model: Seq2seqSpec) -> dict[str, Axes]:
    embedding, hidden = model.embedding_size, model.hidden_size
    between = range(model.num_layers - 1)
    return {
        "source_embedded": ("batch", "source_time", embedding),
        **{f"encoder_{k}": ("batch", "source_time", hidden) for k in between},
        "target_embedded": ("batch", "time", embedding),
        **{f"decoder_{k}": ("batch", "time", hidden) for k in between},
        "attentional": ("batch", "time", hidden),
    }


def _activations(model: Seq2seqSpec) -> dict[str, Axes]:
    hidden, cell, layers = model.hidden_size, model.cell, range(model.num_layers)
    final: Axes = ("batch", model.num_layers, hidden)
    return {
        "encoder/embedded": ("batch", "source_time", model.embedding_size),
        **{f"encoder/{cell}_{k}/hidden": ("batch", "source_time", hidden) for k in layers},
        **({"encoder/c": final} if cell == "lstm" else {}),
        "encoder/h": final,
        "decoder/embedded": ("batch", "time", model.embedding_size),
        **{f"decoder/{cell}_{k}/hidden": ("batch", "time", hidden) for k in layers},
        "attention/weights": ("batch", "time", "source_time"),
        "attention/context": ("batch", "time", hidden),
        "attention/output": ("batch", "time", hidden),
        "logits": ("batch", "time", model.target_vocabulary_size),
        "token_loss": ("batch", "time"),
    }


def _loop(model: Seq2seqSpec) -> tuple[str, ...]:
    if not model.input_feeding:
        return ()
    hidden = [f"decoder/{model.cell}_{k}/hidden" for k in range(model.num_layers)]
    attention = ["attention/weights", "attention/context"]
    if model.attention == "bahdanau":  # attention comes before the cell's step
        return (*attention, *hidden, "attention/output")
    return (*hidden, *attention, "attention/output")


def _draw(choices: Choices, drawn: Mapping[str, Any], limit: int) -> dict[str, Any]:
    shared = choices.boolean()
    source = choices.integer(6, 60)
    values = {
        "source_vocabulary_size": source,
        "target_vocabulary_size": source if shared else choices.integer(6, 60),
        "share_vocabulary": shared,
        **PAIRS.at_spaces,
        "source_limit": limit,
        "target_limit": choices.integer(1, 11),
        "cell": choices.one_of("lstm", "gru"),
        "attention": choices.one_of("dot", "general", "scaled", "bahdanau"),
        "input_feeding": choices.boolean(),
        "bidirectional": choices.boolean(),
    }
    if values["cell"] == "gru":
        # The gradient of Paddle's op divides by the reset gate. In float32 that is 0/0
        # where the gate's argument is below -88, which weights up to 3 can cause.
        values["initial_scale"] = min(drawn["initial_scale"], 1.0)
    if values["bidirectional"]:
        values["hidden_size"] = drawn["hidden_size"] + drawn["hidden_size"] % 2
    return values


def _tiny_pairs(**network: Any) -> Preset:
    return Preset(
        Seq2seqSpec(
            source_vocabulary_size=1_000,
            target_vocabulary_size=1_000,
            embedding_size=64,
            hidden_size=128,
            keep=0.95,
            initial_scale=0.25,
            **network,
        ),
        PairText(source_limit=20, target_limit=20),
        TrainSpec(
            batch_size=32,
            optimizer="adam",
            learning_rate=0.005,
            decay=0.93,
            decay_after=30,
            epochs=70,
            # up to 12 epochs passed before a better one came, at the full rate
            patience=15,
        ),
    )


PRESETS: dict[str, Preset] = {
    # small enough to learn the built-in questions and answers by heart in minutes
    "tiny": _tiny_pairs(attention="general", bidirectional=True),
    # the same size with the other cell, which the attention's context is fed into
    "tiny-nmt": _tiny_pairs(cell="gru", attention="bahdanau", input_feeding=True),
    # arranged so that 12 steps meet every case that a training can: three layers, questions of
    # one token and of the limit, `<unk>`, batches that are not full and gradients on both sides
    # of the clip norm
    "proof": Preset(
        Seq2seqSpec(
            source_vocabulary_size=650,
            target_vocabulary_size=680,
            embedding_size=32,
            hidden_size=64,
            num_layers=3,
            attention="scaled",
            input_feeding=True,
            bidirectional=True,
            keep=0.95,
            initial_scale=0.25,
        ),
        PairText(source_limit=10, target_limit=10, train_lines=602),
        TrainSpec(
            batch_size=67,
            optimizer="adam",
            learning_rate=0.015,
            decay=0.98,
            decay_after=1,
            clip_norm=1.4,
            epochs=12,  # the best is not the last
        ),
    ),
    # Chinese chit-chat: each turn of a dialogue answers the turn before it. Not a published
    # recipe: the rate is Adam's own default (Kingma & Ba 2015, algorithm 1). The norm 5 is that
    # of Sutskever et al. 2014, who divide by rows; divided by tokens, as here, it clips rarely.
    "chatbot": Preset(
        Seq2seqSpec(embedding_size=128, hidden_size=256, attention="general", keep=0.5),
        PairText(split_by="block"),
        TrainSpec(
            batch_size=64, optimizer="adam", learning_rate=1e-3, clip_norm=5.0, epochs=10
        ),
    ),
    # English to Chinese. Of Bahdanau et al. 2015 this has the attention, and the GRU that its
    # context is fed into. It is not the paper's recipe: there the encoder runs in both
    # directions, widths are 620 and 1000, maxout precedes the softmax, Adadelta trains on 80
    # sentences at a time, gradients are clipped at 1, and there is no dropout.
    "nmt-bahdanau": Preset(
        Seq2seqSpec(
            embedding_size=256,
            hidden_size=512,
            cell="gru",
            attention="bahdanau",
            input_feeding=True,
            keep=0.8,
        ),
        PairText(source_segmenter="english"),
        TrainSpec(
            batch_size=64, optimizer="adam", learning_rate=1e-3, clip_norm=5.0, epochs=10
        ),
    ),
    # Of Wu et al. 2016 this has a bidirectional bottom layer and several layers whose decoder is
    # fed the attention. It is not the paper's recipe: there 8 layers of 1024 have residual
    # connections and additive attention, and Adam at 2e-4 is followed by SGD.
    "gnmt-small": Preset(
        Seq2seqSpec(
            embedding_size=256,
            hidden_size=256,
            num_layers=2,
            attention="scaled",
            input_feeding=True,
            bidirectional=True,
            keep=0.8,
        ),
        PairText(source_segmenter="english"),
        TrainSpec(
            batch_size=64, optimizer="adam", learning_rate=1e-3, clip_norm=5.0, epochs=10
        ),
    ),
}


SEQ2SEQ = Network(
    name="seq2seq",
    model=Seq2seqSpec,
    text=PairText,
    presets=PRESETS,
    benchmarks=("chatbot", "nmt-bahdanau"),
    builders={
        "paddle": "paddle_impl.networks:seq2seq",
        "tensorflow": "tf_impl.networks:seq2seq",
        "pytorch": "parity.twins.peers.pytorch_networks:Seq2seq",
    },
    oracle="parity.twins.oracle.seq2seq:seq2seq",
    load_text="data.load:load_pair_text",
    batch={
        "source": ("batch", "source_time"),
        "source_lengths": ("batch",),
        "tokens": ("batch", "time"),
        "targets": ("batch", "time"),
        "lengths": ("batch",),
    },
    lengths={"source_time": "source_lengths", "time": "lengths"},
    vocabularies={
        "source": "source_vocabulary_size",
        "tokens": "target_vocabulary_size",
        "targets": "target_vocabulary_size",
    },
    parameters=_parameters,
    state=lambda model: {},
    masks=_masks,
    activations=_activations,
    embeddings={"encoder/embed/table": "source", "decoder/embed/table": "tokens"},
    loop=_loop,
    # an answer has at least a word, and ends with <eos>
    row_lengths=lambda text: {
        "source_time": (1, text.source_limit),
        "time": (2, text.target_limit + 1),
    },
    unknown_id=PAIR_UNKNOWN_ID,
    decodes=True,
    text_format=PAIRS,
    draw=_draw,
)
