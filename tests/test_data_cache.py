"""A cache: one of several processes makes it, and what is damaged is made anew."""

import hashlib
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import start, wait_for

from data.cache import only_process
from data.load import load_pair_text, load_stream_text
from data.segmenters import _frequencies, _jieba
from parity.base.files import UNFINISHED
from parity.twins.spec.spec import Spec, preset

# one of several processes encodes a text for a cache, and the others wait for it

LINE = "a b c d e f g h i j\n"
# Prints the hash of the corpus, and how many bytes this process has written for it.
LOAD = """
import sys
from pathlib import Path
from data.text_corpus import load_corpus

def written():
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])

print("ready", flush=True)
sys.stdin.readline()
before = written()
corpus = load_corpus(Path(sys.argv[1]), Path(sys.argv[2]), None)
assert len(corpus.train.read(0, 22)) == 22
print(corpus.content_hash, written() - before)
"""


@pytest.fixture(scope="module")
def long_text(tmp_path_factory):
    """Return a folder of text that takes about a second to encode."""
    folder = tmp_path_factory.mktemp("text")
    for split, lines in (("train", 200_000), ("valid", 100), ("test", 100)):
        (folder / f"{split}.txt").write_text(LINE * lines)
    return folder


@pytest.fixture
def load(long_text, tmp_path):
    """Return a function that starts a process, which loads the text when it is told to."""
    started = []

    def run():
        process = start(["-c", LOAD, long_text, tmp_path / "cache"], stdin=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def go(process) -> None:
    """Let a process load the text."""
    process.stdin.write("\n")
    process.stdin.flush()


def loaded(process) -> tuple[str, int, str]:
    """Return the hash of the corpus, how many bytes a process has written, and its stderr."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    content_hash, written = output.split()
    return content_hash, int(written), errors


def cached_tokens(cache: Path) -> Path:
    (tokens,) = cache.glob("corpus-*/train.tokens")
    return tokens


def test_of_processes_that_start_at_once_one_encodes(load, tmp_path):
    processes = [load() for _ in range(4)]
    for process in processes:
        go(process)
    found = [loaded(process) for process in processes]
    assert len({content_hash for content_hash, *_ in found}) == 1
    *others, most = sorted(written for _, written, _ in found)
    size = cached_tokens(tmp_path / "cache").stat().st_size
    assert size == 4 * 200_000 * 11
    assert max(others) < 10_000 < size < most
    assert list((tmp_path / "cache").glob(f"{UNFINISHED}*")) == []


def test_when_the_process_that_encodes_is_killed_the_next_one_does(load, tmp_path):
    first, second = load(), load()
    go(first)
    wait_for(lambda: any((tmp_path / "cache").glob(f"{UNFINISHED}*/train.tokens")))
    first.send_signal(signal.SIGSTOP)  # or it may be done before it is killed
    go(second)
    assert "another process is making this; waiting for it" in second.stderr.readline()
    first.kill()
    _, written, _ = loaded(second)
    assert written > cached_tokens(tmp_path / "cache").stat().st_size


def test_where_there_are_no_locks_the_work_is_done_all_the_same(tmp_path):
    (tmp_path / f"{UNFINISHED}corpus.lock").mkdir()  # a file of this name cannot be made
    with only_process(tmp_path / "corpus"):
        (tmp_path / "corpus").write_text("made")
    assert (tmp_path / "corpus").read_text() == "made"


# whatever happens to a file of a cache, the next training reads the same, and says why


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


def bit_flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(path):
    path.write_bytes(b"")


def removed(path):
    path.unlink()


def a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = (bit_flipped, emptied, removed, a_folder)


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

    def check(self, capsys, damages, left_out: tuple = ()) -> int:
        """Damage every file in every way; return how often."""
        count = 0
        for name, content in self.whole.items():
            if str(name).startswith(left_out):
                continue
            for damage in damages:
                path, where = self.cache / name, f"{name}, {damage.__name__}"
                damage(path)
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


STREAM = preset("language-model", "tiny").replace(batch_size=2, time=3, vocabulary_size=10)
PAIRS = preset("seq2seq", "tiny").replace(
    batch_size=3, source_segmenter="spaces", target_segmenter="spaces"
)
KINDS = {"text": (STREAM, load_stream_text), "pairs": (PAIRS, load_pair_text)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_cache_damaged_in_every_way(kind, request, tmp_path, capsys):
    spec, load = KINDS[kind]
    cached = Cached(tmp_path / "cache", spec, load, request.getfixturevalue(kind))
    assert cached.check(capsys, DAMAGES) > 30


def test_a_folder_of_another_text_does_not_pass_for_it(text, tmp_path, capsys):
    """All its hashes hold, and every id is in range."""
    cached = Cached(tmp_path / "cache", STREAM, load_stream_text, text)
    (folder,) = cached.cache.glob("corpus-*")
    reverse = tmp_path / "reverse"
    shutil.copytree(text, reverse)
    lines = (text / "train.txt").read_text().splitlines(keepends=True)
    (reverse / "train.txt").write_text("".join(reversed(lines)))
    another = Cached(tmp_path / "another", STREAM, load_stream_text, reverse)
    shutil.rmtree(folder)
    (copied,) = another.cache.glob("corpus-*")
    shutil.copytree(copied, folder)
    assert another.expected != cached.expected
    capsys.readouterr()
    assert cached.read() == cached.expected
    assert ": made anew: " in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file", "link"])
def test_what_stands_in_the_place_of_a_folder_is_replaced(place, text, tmp_path, capsys):
    cached = Cached(tmp_path / "cache", STREAM, load_stream_text, text)
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
    assert cached.check(capsys, damages, ("corpus-", "pairs-")) >= 3


def test_jiebas_dictionary_is_read_again(tmp_path, capsys):
    expected = _frequencies(_jieba().Tokenizer(), tmp_path)
    (path,) = tmp_path.glob("jieba-*/frequencies")
    bit_flipped(path)
    capsys.readouterr()
    assert _frequencies(_jieba().Tokenizer(), tmp_path) == expected
    assert capsys.readouterr().err.splitlines() == [
        f"{path.parent}: made anew: frequencies does not hold what was written"
    ]
