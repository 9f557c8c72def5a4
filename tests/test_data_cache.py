"""A cache: one of several processes makes it, and what is damaged is made anew."""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import wait_for

from data.cache import only_process
from data.load import load_pair_text, load_stream_text
from data.segmenters import _frequencies, _jieba
from parity.base.files import UNFINISHED
from parity.twins.spec.spec import Spec, preset

ROOT = Path(__file__).resolve().parent.parent
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
def text(tmp_path_factory):
    """Return a folder of text that takes about a second to encode."""
    folder = tmp_path_factory.mktemp("text")
    for split, lines in (("train", 200_000), ("valid", 100), ("test", 100)):
        (folder / f"{split}.txt").write_text(LINE * lines)
    return folder


@pytest.fixture
def load(text, tmp_path):
    """Return a function that starts a process, which loads the text when it is told to."""
    started = []

    def run():
        command = [sys.executable, "-c", LOAD, str(text), str(tmp_path / "cache")]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
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


def load_at_once(load) -> list[int]:
    """Load the text in four processes at once; return how much each has written, sorted."""
    processes = [load() for _ in range(4)]
    for process in processes:
        go(process)
    found = [loaded(process) for process in processes]
    assert len({content_hash for content_hash, *_ in found}) == 1
    return sorted(written for _, written, _ in found)


def cached_tokens(cache: Path) -> Path:
    (tokens,) = cache.glob("corpus-*/train.tokens")
    return tokens


def test_of_processes_that_start_at_once_one_encodes(load, tmp_path):
    *others, most = load_at_once(load)
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
    assert cached.check(capsys, DAMAGES) > 30


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
