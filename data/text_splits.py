"""Which lines of a single text are for training, for validation and for the test.

The lines are cut into a hundred blocks of equally many sentences, one each if there are fewer.
In the order of a hash 5 % of the blocks, at least one, are for the test, the next 5 % for
validation, and all others for training: so what follows a line is mostly what follows it in the
text. The split depends on the number of sentences alone.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from data.cache import file_hash, file_stats, make_whole, settings_hash, sync
from data.text_file import read_lines
from parity.base.errors import UsageError
from parity.base.text import counted

SPLITS = ("train", "valid", "test")

_BLOCKS = 100
_HELD_OUT = 0.05  # share of the test, and of validation
_FORMAT = 1  # a change to the split must raise this


def split_text(path: Path, cache: Path) -> dict[str, Path]:
    """Write a text's three splits into the cache, or find them there.

    Args:
      path: the text.
      cache: a folder that exists.

    Returns:
      Split -> its file.

    Raises:
      UsageError: naming the file, if it cannot be used.
    """
    before = file_stats([path])
    settings = {"format": _FORMAT, "text": file_hash(path)}
    target = cache / f"split-{settings_hash(settings)[:32]}"

    def make(temporary: Path) -> None:
        with ExitStack() as stack:
            files = {
                split: stack.enter_context((temporary / f"{split}.txt").open("wb"))
                for split in SPLITS
            }
            for split, line in _assigned(path):
                files[split].write(f"{line}\n".encode())
            sync(*files.values())

    make_whole(target, make, before)
    return {split: target / f"{split}.txt" for split in SPLITS}


def _assigned(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line with its split; a blank one goes with the sentence before it."""
    sentences = sum(1 for line in read_lines(path, []) if line.split())
    if sentences < len(SPLITS):
        raise UsageError(
            f"{path}: {counted(sentences, 'line')} with words, at least {len(SPLITS)} are"
            " needed, one each to train, to validate and to test: break the text into lines"
        )
    blocks = min(_BLOCKS, sentences)
    held_out = max(1, round(_HELD_OUT * blocks))
    order = sorted(range(blocks), key=lambda block: hashlib.sha256(b"%d" % block).digest())
    split_of = dict.fromkeys(order, "train")
    split_of |= dict.fromkeys(order[:held_out], "test")
    split_of |= dict.fromkeys(order[held_out : 2 * held_out], "valid")
    seen = -1
    for line in read_lines(path, []):
        seen += bool(line.split())
        yield split_of[max(seen, 0) * blocks // sentences], line
