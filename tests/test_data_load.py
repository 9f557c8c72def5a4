"""What a training reads, and a trained network reads and writes with."""

import threading
import time

import numpy as np
import pytest

from data.load import Prefetch, load_pair_text, load_stream_text, load_words
from parity.twins.spec.spec import preset

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


def test_the_lowest_possible_perplexity_is_of_the_whole_vocabulary_alone(cache):
    """Words that become `<unk>` are easier to predict than the words themselves."""
    values = preset("language-model", "tiny").values()
    assert load_stream_text(None, cache, values).best_perplexity("test") > 5
    smaller = load_stream_text(None, cache, values | {"vocabulary_size": 160})
    assert smaller.best_perplexity("test") is None
    few = load_stream_text(None, cache, values | {"train_lines": 700})
    assert few.best_perplexity("train") is None
    assert few.best_perplexity("test") > 5


# batches come in order from a background thread, and so do its exceptions


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_no_more_than_depth_items_are_ahead():
    done = []
    with Prefetch(done.append, 0, 100, depth=3) as items:
        next(items)
        time.sleep(0.2)
        assert len(done) <= 1 + 3 + 1  # used, waiting, and the one in hand
        assert len(done) >= 4  # but it does work ahead


def test_exception_arrives_in_its_place():
    def function(step):
        if step == 2:
            raise ValueError("step 2 is bad")
        return step

    with Prefetch(function, 0, 5) as items:
        assert next(items) == 0
        assert next(items) == 1
        with pytest.raises(ValueError, match="step 2 is bad"):
            next(items)
        assert list(items) == []
    assert alive() == []


def test_close_stops_a_thread_that_waits_to_deliver():
    items = Prefetch(lambda step: step, 0, 10**9, depth=2)
    assert next(items) == 0
    started = time.perf_counter()
    items.close()
    assert time.perf_counter() - started < 1
    assert alive() == []
    assert list(items) == []
    items.close()  # once more does no harm
