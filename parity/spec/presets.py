"""Named sizes and training for each network."""

from typing import Any

from parity.base.errors import UsageError
from parity.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.spec.spec import Spec, TrainSpec


def _zaremba(
    hidden: int, time: int, keep: float, clip: float, scale: float, **schedule: Any
) -> Spec:
    return Spec(
        "language-model",
        LanguageModelSpec(
            embedding_size=hidden,
            hidden_size=hidden,
            num_layers=2,
            keep=keep,
            initial_scale=scale,
        ),
        LanguageModelText(time=time),
        TrainSpec(batch_size=20, clip_norm=clip, learning_rate=1.0, **schedule),
    )


def _tiny_pairs(**network: Any) -> Spec:
    return Spec(
        "seq2seq",
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
        ),
    )


PRESETS: dict[str, dict[str, Spec]] = {
    "language-model": {
        # small enough to come near the embedded grammar's optimum in seconds
        "tiny": Spec(
            "language-model",
            LanguageModelSpec(
                vocabulary_size=1_000, embedding_size=32, hidden_size=64, keep=0.95
            ),
            LanguageModelText(time=20),
            TrainSpec(
                batch_size=20,
                optimizer="adam",
                learning_rate=0.02,
                decay=0.4,
                decay_after=3,
                epochs=5,
            ),
        ),
        # the sizes both sides of the 2018 twin example claimed to have
        "tf2fluid": Spec(
            "language-model",
            LanguageModelSpec(embedding_size=64, hidden_size=128, num_layers=2),
            LanguageModelText(batching="sentences", time=50),
            TrainSpec(
                batch_size=60,
                optimizer="adam",
                learning_rate=1e-3,
                epochs=5,
            ),
        ),
        # zaremba-small's network on the batches that throughput is quoted for
        "bench": Spec(
            "language-model",
            LanguageModelSpec(embedding_size=200, hidden_size=200, num_layers=2),
            LanguageModelText(time=35),
            TrainSpec(batch_size=64, learning_rate=1.0, clip_norm=5.0),
        ),
        # Zaremba et al. 2014, section 4.1 and its published code
        "zaremba-small": _zaremba(200, 20, 1.0, 5.0, 0.1, decay=0.5, decay_after=4, epochs=13),
        "zaremba-medium": _zaremba(
            650, 35, 0.5, 5.0, 0.05, decay=0.8, decay_after=6, epochs=39
        ),
        "zaremba-large": _zaremba(
            1500, 35, 0.35, 10.0, 0.04, decay=1 / 1.15, decay_after=14, epochs=55
        ),
    },
    "seq2seq": {
        # small enough to learn the embedded questions and answers by heart in minutes
        "tiny": _tiny_pairs(attention="general", bidirectional=True),
        # the same size, the other cell, and the attention's context fed into it
        "tiny-nmt": _tiny_pairs(cell="gru", attention="bahdanau", input_feeding=True),
        # Chinese chit-chat: one dialogue turn answers the one before
        "chatbot": Spec(
            "seq2seq",
            Seq2seqSpec(embedding_size=128, hidden_size=256, attention="general", keep=0.5),
            PairText(split_by="block"),
            TrainSpec(
                batch_size=64, optimizer="adam", learning_rate=1e-3, clip_norm=5.0, epochs=10
            ),
        ),
        # English to Chinese, as in Bahdanau et al. 2015 but one layer, one direction
        "nmt-bahdanau": Spec(
            "seq2seq",
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
        # the shape of Wu et al. 2016, two layers in place of eight
        "gnmt-small": Spec(
            "seq2seq",
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
    },
}


# What `bench` times unless told otherwise.
BENCHED = {"language-model": ("bench",), "seq2seq": ("chatbot", "nmt-bahdanau")}
# And `profile`.
PROFILED = {"language-model": "bench", "seq2seq": "chatbot"}


def preset(network: str, name: str) -> Spec:
    """Return a named preset.

    Raises:
      UsageError: for an unknown network or preset, listing the known ones.
    """
    if network not in PRESETS:
        raise UsageError(f"--network is {network!r}; allowed: {', '.join(PRESETS)}")
    if name not in PRESETS[network]:
        raise UsageError(f"--preset is {name!r}; allowed: {', '.join(PRESETS[network])}")
    return PRESETS[network][name]
