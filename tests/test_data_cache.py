"""One of several processes encodes a text for a cache, and the others wait for it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_for

from data.cache import only_process
from parity.base.files import UNFINISHED

ROOT = Path(__file__).resolve().parent.parent
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
