"""Downloads are checked and atomic; the server here is a real one."""

import hashlib
import http.server
import threading

import pytest
from conftest import assert_one_line

from data.download import CORPORA, PublicCorpus, download, main
from parity.base.errors import UsageError
from parity.twins.spec.networks.language_model import PRESETS

TEXTS = {
    "train.txt": b"the cat sat\n" * 20_000,
    "valid.txt": b"a cat\n" * 100,
    "test.txt": b"the mat\n" * 100,
}


PAGE = b"\n<!DOCTYPE html><html><body>Please sign in</body></html>"


class Server(http.server.ThreadingHTTPServer):
    """Serves `bodies`, path -> bytes; a path in `broken` is cut half way, once."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.broken, self.asked = {}, set(), []
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path not in self.server.bodies:
            self.send_error(404)
            return
        body = self.server.bodies[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path in self.server.broken:
            self.server.broken.remove(self.path)
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def small_corpus(*sources):
    hashes = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}
    return PublicCorpus("small", "none", hashes, sources)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def failure(*arguments):
    with pytest.raises(UsageError) as caught:
        download(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def bodies(folder, **changed):
    """Return the texts in a folder of the server."""
    return {f"/{folder}{name}": text for name, text in (TEXTS | changed).items()}


def test_after_a_broken_transfer_the_next_run_fetches_the_rest(tmp_path, server):
    server.bodies, server.broken = bodies(""), {"/test.txt"}
    corpus = small_corpus(server.address)
    message = failure(corpus, tmp_path)
    assert message.startswith("small: no source gave test.txt, the last one: ")
    assert f"{server.address}test.txt: the transfer broke off;" in message
    assert message.endswith(f" by hand from {server.address} into {tmp_path}")
    assert set(contents(tmp_path)) == {"train.txt", "valid.txt"}
    server.asked.clear()
    download(corpus, tmp_path)
    assert server.asked == ["/test.txt"]
    assert contents(tmp_path) == TEXTS


def test_next_source_is_tried(tmp_path, server, capsys):
    wrong = TEXTS["valid.txt"] + b"one line more\n"
    server.bodies = (
        bodies("page/", **{"train.txt": PAGE})
        | bodies("a/", **{"valid.txt": wrong})
        | bodies("b/")
    )
    sources = [server.address + path for path in ("missing/", "page/", "a/", "b/")]
    download(small_corpus(*sources), tmp_path)
    assert contents(tmp_path) == TEXTS
    lines = capsys.readouterr().err.splitlines()
    digests = [hashlib.sha256(text).hexdigest() for text in (PAGE, TEXTS["train.txt"])]
    digests += [hashlib.sha256(text).hexdigest() for text in (wrong, TEXTS["valid.txt"])]
    assert [line for line in lines if line.startswith("failed")] == [
        f"failed: {sources[0]}train.txt: HTTP status 404",
        f"failed: {sources[1]}train.txt: its sha256 is {digests[0]}, {digests[1]} is needed,"
        " an HTML page came in its place",
        f"failed: {sources[2]}valid.txt: its sha256 is {digests[2]}, {digests[3]} is needed",
    ]


def test_another_file_in_the_way_is_not_touched(tmp_path, server):
    (tmp_path / "valid.txt").write_bytes(b"mine\n")
    message = failure(small_corpus(server.address), tmp_path)
    seen = hashlib.sha256(b"mine\n").hexdigest()
    needed = hashlib.sha256(TEXTS["valid.txt"]).hexdigest()
    assert message == (
        f"{tmp_path}/valid.txt: another file of this name is here, its sha256 is {seen} and"
        f" {needed} is needed: move it away"
    )
    assert server.asked == []
    assert contents(tmp_path) == {"valid.txt": b"mine\n"}


def test_ptb_is_the_one_of_the_published_results():
    assert CORPORA["ptb"].hashes["ptb.train.txt"] == (
        PRESETS["zaremba-small"].published.train_sha256
    )


# the command


def test_bad_use_is_one_line(capsys):
    line = assert_one_line(main(["wikitext-3", "--out", "x"]), capsys.readouterr().err)
    assert "'wikitext-3' is not one of 'wikitext-2', 'ptb'" in line


def test_command_fetches_a_corpus(tmp_path, server, capsys, monkeypatch):
    monkeypatch.setitem(CORPORA, "wikitext-2", small_corpus())
    server.bodies = bodies("")
    assert main(["wikitext-2", "--out", str(tmp_path), "--url", server.address]) == 0
    output = capsys.readouterr()
    assert f"{tmp_path}/train.txt: 240,000 bytes" in output.out
    assert output.err.startswith("licence of wikitext-2: none\n")
    assert contents(tmp_path) == TEXTS
