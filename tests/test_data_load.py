"""What a trained network reads and writes with, from the files beside its checkpoint."""

import re

import numpy as np
import pytest
from conftest import flags

from data.load import load_pair_text, load_stream_text, load_words
from parity.base.errors import UsageError
from parity.twins.spec.spec import preset
from parity.twins.training.checkpoint import newest_checkpoint
from parity.twins.training.loss_table import read_losses

PAIRS = [("他 来 到 了 网易 杭研 大厦", "好 的"), ("你 好", "你 也 好"), ("来 了", "去 了")]
NAMES = "source.vocabulary.txt", "target.vocabulary.txt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "valid", "test"):
        lines = [f"{a.replace(' ', '')}\t{b.replace(' ', '')}\n" for a, b in PAIRS]
        (folder / f"{split}.tsv").write_text("".join(lines))
    (folder / "words.txt").write_text("杭研大厦 9 n\n网易杭研\n")
    return folder


def settings(**values):
    spec = preset("seq2seq", "tiny").replace(batch_size=3, **values)
    return spec.values()


def loaded(folder, cache, dictionary=None, **values):
    return load_pair_text(folder, cache, settings(**values), user_dictionary=dictionary)


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_typed_question_is_cut_as_in_training(folder, cache, dictionary):
    path = folder / "words.txt" if dictionary else None
    text = loaded(folder, cache, path)
    assert set(text.vocabularies) == {*NAMES, *(["user_dictionary.txt"] if dictionary else [])}
    words = load_words(text.vocabularies, folder, settings())
    source, lengths = text.sources("train", range(9))
    assert text.num_sources("train") == len(source) == 3, "rows beyond the last are left out"
    for (question, _), ids, length in zip(PAIRS, source, lengths, strict=True):
        np.testing.assert_array_equal(words.read(question.replace(" ", "")), ids[:length])
    known = words.source_vocabulary.tokens
    assert ("网易杭研" in known or "杭研大厦" in known) == dictionary


def test_answers_are_written_as_they_stood(folder, cache):
    text = loaded(folder, cache)
    words = load_words(text.vocabularies, folder, settings())
    assert text.references("train") == [answer.replace(" ", "") for _, answer in PAIRS]
    for reference in text.references("train"):
        ids = words.target_vocabulary.encode(words.segmentation.segment_source(reference))
        assert words.write(ids.tolist()) == text.write(ids.tolist()) == reference
    assert words.write([]) == ""


def test_text_without_answers_writes_none(text, cache):
    values = preset("language-model", "tiny").replace(batch_size=7, time=5).values()
    with pytest.raises(TypeError, match="this text has no answers"):
        load_stream_text(text, cache, values).write([1])


def test_the_lowest_possible_perplexity_is_of_the_whole_vocabulary_alone(cache):
    """Words that become `<unk>` are easier to predict than the words themselves."""
    values = preset("language-model", "tiny").values()
    assert load_stream_text(None, cache, values).best_perplexity("test") > 5
    smaller = load_stream_text(None, cache, values | {"vocabulary_size": 160})
    assert smaller.best_perplexity("test") is None
    few = load_stream_text(None, cache, values | {"train_lines": 700})
    assert few.best_perplexity("train") is None
    assert few.best_perplexity("test") > 5


WORDS = b"<pad>\n<go>\n<eos>\n<unk>\na\nb\nc\n"
FAULTS = {
    "a blank line at the end": (WORDS + b"\n", ":8: a blank line"),
    "special tokens moved": (
        WORDS.replace(b"<pad>\n<go>", b"<go>\n<pad>"),
        ":2: token <pad> must be on line 1",
    ),
    "too few": (WORDS[: WORDS.index(b"b\n")], ": besides <pad>, <go>, <eos> and <unk>"),
    "nothing": (b"", ":1: a blank line"),
    "not UTF-8": (WORDS + b"\xc4\xe3\n", ":8: byte 0xc4 is not UTF-8"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_vocabulary_is_refused_by_its_line(tmp_path, name, fault):
    content, said = FAULTS[fault]
    files = dict.fromkeys(NAMES, WORDS) | {name: content}
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / name}{said}")) as caught:
        load_words(files, tmp_path, settings())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "framework",
    ["paddle", pytest.param("tensorflow", marks=pytest.mark.thorough)],
    indirect=True,
)
def test_a_run_keeps_its_vocabularies_and_its_losses(framework, folder, cache, tmp_path):
    """Beside each checkpoint; --resume goes on with both, --overwrite removes its own alone."""
    spec = {
        "network": "seq2seq",
        "time": None,
        "vocabulary_size": None,
        "batch_size": 3,
        "source_segmenter": "spaces",
        "target_segmenter": "spaces",
        "optimizer": "adam",
        "data": folder,
        "cache": cache,
        "out": tmp_path / "run",
        "replicas": 1,
    }
    kept = tmp_path / "run" / "checkpoints"

    def run(*words, **values):
        status, _, errors = framework.train(*flags(**spec | values), *words).wait()
        return status, errors

    assert run(epochs=2)[0] == 0
    vocabularies = loaded(
        folder, cache, source_segmenter="spaces", target_segmenter="spaces"
    ).vocabularies
    assert {path.name: path.read_bytes() for path in kept.glob("*.txt")} == vocabularies
    assert set(newest_checkpoint(kept, []).vocabularies) == set(vocabularies) == {*NAMES}
    losses = tmp_path / "run" / "losses.csv"
    before = read_losses(losses)
    assert [step for step, _, _ in before] == [0, 1]
    assert run("--resume", epochs=3)[0] == 0
    after = read_losses(losses)
    assert after[:2] == before
    assert [step for step, _, _ in after] == [0, 1, 2]
    for name in ("notes.txt", "user_dictionary.txt"):
        (kept / name).write_text("mine, and of the run before\n")
    assert run("--overwrite", epochs=1)[0] == 0
    assert {path.name for path in kept.glob("*.txt")} == {*NAMES, "notes.txt"}
    assert [step for step, _, _ in read_losses(losses)] == [0]
