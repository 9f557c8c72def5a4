"""Whatever happens to a file of a cache, the next training reads the same, and says why."""

import hashlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from data.load import load_pair_text, load_stream_text
from data.segmenters import _frequencies, _jieba
from parity.twins.spec.spec import Spec, preset

SPLITS = ("train", "valid", "test")


def digest(text, *, pairs: bool) -> str:
    """Return a hash of all that a training reads: batches, questions, answers, vocabularies."""
    found = hashlib.sha256(text.content_hash.encode())
    found.update(repr((sorted(text.sizes.items()), text.notes, text.vocabularies)).encode())
    for split in SPLITS:
        batches = getattr(text, split)
        for step in range(batches.batches_per_epoch + 1):
            for name, value in sorted(vars(batches.batch(step)).items()):
                listed = value.tolist() if isinstance(value, np.ndarray) else value
                found.update(repr((name, listed)).encode())
        if pairs:
            count = text.num_sources(split)
            found.update(repr([a.tolist() for a in text.sources(split, range(count))]).encode())
            found.update(repr(text.references(split)).encode())
    return found.hexdigest()


def bit_flipped(path, other):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(path, other):
    path.write_bytes(b"")


def removed(path, other):
    path.unlink()


def other_ids(path, other):
    """Exchange words of four bytes: of a file of ids, ids in range; right-sized of any file."""
    content = path.read_bytes()
    words = [content[i : i + 4] for i in range(0, len(content) - 3, 4)]
    random.Random(1).shuffle(words)
    path.write_bytes(b"".join(words) + content[4 * len(words) :])


def another_file(path, other):
    shutil.copy(other, path)


def a_folder(path, other):
    path.unlink()
    path.mkdir()


DAMAGES = (bit_flipped, emptied, removed, other_ids, another_file, a_folder)


class Cached:
    """A text in a cache, whose files are damaged one by one."""

    def __init__(self, folder: Path, spec: Spec, load, text: Path | None):
        self.cache, self._values, self._load, self._text = folder, spec.values(), load, text
        self.pairs = load is load_pair_text
        self.expected = self.read()
        self.whole = {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    def read(self) -> str:
        """Return the digest of what a training would read."""
        return digest(self._load(self._text, self.cache, self._values), pairs=self.pairs)

    def check(self, capsys, damages, others, left_out: tuple = ()) -> int:
        """Damage every file in every way; return how often."""
        count = 0
        for name, content in self.whole.items():
            if str(name).startswith(left_out):
                continue
            for damage in damages:
                path, where = self.cache / name, f"{name}, {damage.__name__}"
                damage(path, others / name)
                unchanged = path.is_file() and path.read_bytes() == content
                capsys.readouterr()
                assert self.read() == self.expected, where
                said = capsys.readouterr().err.splitlines()
                if not unchanged:
                    assert len(said) == 1, (where, said)
                    assert ": made anew: " in said[0], (where, said)
                    assert str(self.cache / name.parts[0]) in said[0], (where, said)
                    count += 1
                assert path.is_file(), where
        return count


@pytest.fixture
def texts(tmp_path):
    """Return folders of texts and of pairs, of 12 words."""
    draw = random.Random(5)
    line = lambda: " ".join(f"w{draw.randrange(12)}" for _ in range(draw.randint(2, 6)))  # noqa: E731
    folders = [tmp_path / name for name in ("text", "pairs")]
    for folder in folders:
        folder.mkdir()
    for split in SPLITS:
        (folders[0] / f"{split}.txt").write_text("\n".join(line() for _ in range(12)) + "\n")
        rows = "\n".join(f"{line()}\t{line()}" for _ in range(8))
        (folders[1] / f"{split}.tsv").write_text(rows + "\n")
    return folders


STREAM = preset("language-model", "tiny").replace(batch_size=2, time=3, vocabulary_size=10)
PAIRS = preset("seq2seq", "tiny").replace(
    batch_size=3, source_segmenter="spaces", target_segmenter="spaces"
)
KINDS = {"text": (STREAM, load_stream_text), "pairs": (PAIRS, load_pair_text)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_cache_damaged_in_every_way(kind, texts, tmp_path, capsys):
    spec, load = KINDS[kind]
    cached = Cached(tmp_path / "cache", spec, load, dict(zip(KINDS, texts, strict=True))[kind])
    others = tmp_path / "others"  # of the same names, as if copied from another cache
    for name, content in cached.whole.items():
        (others / name).parent.mkdir(parents=True, exist_ok=True)
        (others / name).write_bytes(content[::-1])
    assert cached.check(capsys, DAMAGES, others) > 45


def test_a_folder_of_another_text_does_not_pass_for_it(texts, tmp_path, capsys):
    """All its hashes hold, and every id is in range."""
    cached = Cached(tmp_path / "cache", STREAM, load_stream_text, texts[0])
    (folder,) = cached.cache.glob("corpus-*")
    text = texts[0] / "train.txt"
    text.write_text("".join(reversed(text.read_text().splitlines(keepends=True))))
    another = Cached(tmp_path / "another", STREAM, load_stream_text, texts[0])
    text.write_text("".join(reversed(text.read_text().splitlines(keepends=True))))
    shutil.rmtree(folder)
    (copied,) = another.cache.glob("corpus-*")
    shutil.copytree(copied, folder)
    assert another.expected != cached.expected
    capsys.readouterr()
    assert cached.read() == cached.expected
    assert ": made anew: " in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file", "link"])
def test_what_stands_in_the_place_of_a_folder_is_replaced(place, texts, tmp_path, capsys):
    cached = Cached(tmp_path / "cache", STREAM, load_stream_text, texts[0])
    (folder,) = cached.cache.glob("corpus-*")
    shutil.rmtree(folder)
    if place == "file":
        folder.write_text("a file")
    else:
        folder.symlink_to(tmp_path / "nowhere")
    assert cached.read() == cached.expected
    assert capsys.readouterr().err.count(": made anew: hashes cannot be read") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_built_in_text_is_written_again(kind, tmp_path, capsys):
    spec, load = KINDS[kind]
    cached = Cached(
        tmp_path, spec.replace(train_lines=50) if kind == "text" else spec, load, None
    )
    damages = (bit_flipped, removed)
    assert cached.check(capsys, damages, tmp_path, ("corpus-", "pairs-")) >= 3


def test_jiebas_dictionary_is_read_again(tmp_path, capsys):
    expected = _frequencies(_jieba().Tokenizer(), tmp_path)
    (path,) = tmp_path.glob("jieba-*/frequencies")
    for damage in (bit_flipped, emptied):
        damage(path, tmp_path)
        capsys.readouterr()
        assert _frequencies(_jieba().Tokenizer(), tmp_path) == expected
        assert capsys.readouterr().err.splitlines() == [
            f"{path.parent}: made anew: frequencies does not hold what was written"
        ]
