"""Downloads are checked, atomic and kept within their folder; the server here is a real one."""

import hashlib
import http.server
import io
import os
import tarfile
import threading
import zipfile

import pytest

from data import text_corpus as corpus_module
from data.download import CORPORA, PublicCorpus, download, main
from parity.base.errors import UsageError
from parity.twins.spec.networks.language_model import PRESETS

TEXTS = {
    "train.txt": b"the cat sat\n" * 20_000,
    "valid.txt": b"a cat\n" * 100,
    "test.txt": b"the mat\n" * 100,
}
MEMBERS = {name: f"small/wiki.{name[:-4]}.tokens" for name in TEXTS}
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


def zip_of(members, method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tgz_of(members, packed="gz"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{packed}") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def good_members():
    return {MEMBERS[name]: content for name, content in TEXTS.items()}


def small_corpus(*sources, **archive_hashes):
    return PublicCorpus(
        name="small",
        licence="none",
        hashes={name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()},
        members=MEMBERS,
        sources=sources,
        archive_hashes=archive_hashes,
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def failure(*arguments):
    with pytest.raises(UsageError) as caught:
        download(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["zip", "tgz", "tar.gz", "folder"])
def test_good_download(tmp_path, server, kind):
    if kind == "folder":
        source = server.address + "texts/"
        server.bodies = {f"/texts/{name}": text for name, text in TEXTS.items()}
    else:
        source = f"{server.address}small.{kind}"
        make = zip_of if kind == "zip" else tgz_of
        server.bodies[f"/small.{kind}"] = make({"small/README": b"read me", **good_members()})
    out = tmp_path / "new" / "out"
    paths = download(small_corpus(source), out)
    assert paths == [out / name for name in TEXTS]
    assert contents(out) == TEXTS
    assert set(corpus_module.find_splits(out)) == {"train", "valid", "test"}


def test_broken_transfer_leaves_nothing_and_the_next_run_succeeds(tmp_path, server):
    server.bodies["/small.zip"] = zip_of(good_members())
    server.broken = {"/small.zip"}
    corpus = small_corpus(server.address + "small.zip")
    message = failure(corpus, tmp_path)
    assert f"the last one: {server.address}small.zip: the transfer broke off;" in message
    assert contents(tmp_path) == {}
    download(corpus, tmp_path)
    assert contents(tmp_path) == TEXTS


def test_next_source_is_tried(tmp_path, server, capsys):
    server.bodies = {"/small.zip": PAGE, **{f"/a/{name}": text for name, text in TEXTS.items()}}
    server.bodies["/a/valid.txt"] += b"one line more\n"
    server.bodies["/small.tgz"] = tgz_of(good_members())
    sources = [
        server.address + path for path in ("missing.zip", "small.zip", "a/", "small.tgz")
    ]
    download(small_corpus(*sources), tmp_path)
    assert contents(tmp_path) == TEXTS
    failed = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("failed")
    ]
    seen = hashlib.sha256(server.bodies["/a/valid.txt"]).hexdigest()
    needed = hashlib.sha256(TEXTS["valid.txt"]).hexdigest()
    assert failed == [
        f"failed: {sources[0]}: HTTP status 404",
        f"failed: {sources[1]}: not an archive, or a damaged one: File is not a zip file",
        f"failed: {sources[2]}valid.txt: its sha256 is {seen}, {needed} is needed",
    ]


def test_archive_is_checked_before_it_is_opened(tmp_path, server):
    source = server.address + "small.zip"
    server.bodies["/small.zip"] = zip_of({**good_members(), "more": b""})
    needed = hashlib.sha256(zip_of(good_members())).hexdigest()
    seen = hashlib.sha256(server.bodies["/small.zip"]).hexdigest()
    corpus = small_corpus(source, **{source: f"sha256:{needed}"})
    assert f"{source}: its sha256 is {seen}, {needed} is needed;" in failure(corpus, tmp_path)
    server.bodies["/small.zip"] = PAGE
    seen = hashlib.sha256(PAGE).hexdigest()
    assert (
        f"{source}: its sha256 is {seen}, {needed} is needed, an HTML page came in its place;"
        in failure(corpus, tmp_path)
    )
    assert contents(tmp_path) == {}


def test_wrong_member_is_refused_and_the_way_by_hand_is_named(tmp_path, server):
    source = server.address + "small.zip"
    server.bodies["/small.zip"] = zip_of({**good_members(), MEMBERS["test.txt"]: b"the dog\n"})
    message = failure(small_corpus(source), tmp_path)
    seen = hashlib.sha256(b"the dog\n").hexdigest()
    needed = hashlib.sha256(TEXTS["test.txt"]).hexdigest()
    assert message == (
        f"small: no source gave test.txt, the last one: {source}: {MEMBERS['test.txt']}: its"
        f" sha256 is {seen}, {needed} is needed; try again, or fetch {source} by hand and put"
        " small/wiki.train.tokens as train.txt, small/wiki.valid.tokens as valid.txt,"
        f" small/wiki.test.tokens as test.txt into {tmp_path}"
    )
    assert set(contents(tmp_path)) == {"train.txt", "valid.txt"}


@pytest.mark.parametrize("make", [zip_of, tgz_of])
def test_archive_without_a_text_is_named(tmp_path, server, make):
    path = "/small.zip" if make is zip_of else "/small.tgz"
    server.bodies[path] = make({"small/README": b"read me"})
    message = failure(small_corpus(server.address + path[1:]), tmp_path)
    assert "no file small/wiki.train.tokens in this archive" in message
    assert contents(tmp_path) == {}


PACKED = {
    "bzip2 in a zip": ("zip", lambda members: zip_of(members, zipfile.ZIP_BZIP2)),
    "xz in a zip": ("zip", lambda members: zip_of(members, zipfile.ZIP_LZMA)),
    "bzip2 of a tar": ("tgz", lambda members: tgz_of(members, "bz2")),
    "xz of a tar": ("tgz", lambda members: tgz_of(members, "xz")),
}


@pytest.mark.parametrize("packed", PACKED)
def test_damage_of_any_compression_is_named(tmp_path, server, packed):
    """A byte in the middle is wrong, and another one in each try."""
    ending, make = PACKED[packed]
    texts = {name: os.urandom(2000).hex().encode() * 4 for name in MEMBERS.values()}
    whole = make(texts)
    address = f"{server.address}small.{ending}"
    for place in range(40, len(whole) - 40, len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        server.bodies[f"/small.{ending}"] = bytes(damaged)
        with pytest.raises(UsageError) as caught:
            download(small_corpus(address), tmp_path / "out")
        said = str(caught.value)
        assert "small: no source gave train.txt, valid.txt, test.txt" in said
        assert "cannot be written" not in said, "that is what a full disk says"
        assert contents(tmp_path / "out") == {}


@pytest.mark.parametrize("make", [zip_of, tgz_of])
def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path, server, make):
    ending = "zip" if make is zip_of else "tgz"
    bomb = make({**good_members(), MEMBERS["train.txt"]: bytes(100_000_000)})
    assert len(bomb) < 300_000
    server.bodies[f"/bomb.{ending}"] = bomb
    message = failure(small_corpus(f"{server.address}bomb.{ending}"), tmp_path)
    assert "train.tokens: unpacks to more than 67,108,864 bytes" in message
    assert contents(tmp_path) == {}


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wikitext-3", "--out", "x"], "'wikitext-3' is not one of 'wikitext-2', 'ptb'"),
        (["ptb"], "Missing option '--out'"),
        (["ptb", "--out", "x", "--fast"], "No such option"),
    ],
)
def test_bad_use_is_one_line(capsys, arguments, message):
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert message in output.err
    assert output.err.count("\n") == 1


def test_command_fetches_a_corpus(tmp_path, server, capsys, monkeypatch):
    monkeypatch.setitem(CORPORA, "wikitext-2", small_corpus())
    server.bodies["/w.zip"] = zip_of(good_members())
    source = server.address + "w.zip"
    assert main(["wikitext-2", "--out", str(tmp_path), "--url", source]) == 0
    output = capsys.readouterr()
    assert f"{tmp_path}/train.txt: 240,000 bytes" in output.out
    assert output.err.startswith("licence of wikitext-2: none\n")
    assert contents(tmp_path) == TEXTS
