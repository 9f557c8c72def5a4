"""Writes text to time with: words from a Zipf distribution, with an exact vocabulary size."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from parity.base.files import make_folder, write_whole
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec

_WORDS_PER_LINE = 25


def write_zipf_text(spec: Spec, steps: int, out: Path) -> tuple[Spec, Path]:
    """Write text for a network that has exactly the vocabulary sizes of its spec.

    Args:
      spec: the network, its text and its training.
      steps: the number of training steps that the text must last for within one epoch.
      out: the folder in which a folder for the text is made.

    Returns:
      The spec to train with, which splits the text at spaces, and the folder of the text.

    Raises:
      UsageError: if the text cannot be written.
    """
    form = NETWORKS[spec.network].text_format
    spec = spec.replace(**form.at_spaces)
    sizes = [getattr(spec.model, name) - form.special for name in form.vocabularies]
    folder = out / f"zipf-{'-'.join(map(str, sizes))}"
    make_folder(folder)
    generator = np.random.Generator(np.random.PCG64(1))
    for split, batches in (("train", steps + 1), ("valid", 2), ("test", 2)):
        rows, whole = batches * spec.training.batch_size, split == "train"
        if form.pairs:
            rows = max(rows, -(-2 * max(sizes) // 3)) if whole else rows
            lines = _pairs(generator, rows, sizes, whole)
        else:
            count = rows * spec.text.time
            count = max(count, 2 * sizes[0]) if whole else count
            words = _words(generator, count, sizes[0], whole)
            lines = [
                " ".join(words[start : start + _WORDS_PER_LINE])
                for start in range(0, count, _WORDS_PER_LINE)
            ]
        content = "".join(f"{line}\n" for line in lines).encode()
        write_whole(folder / f"{split}.{form.suffix}", content)
    return spec, folder


def _words(generator: np.random.Generator, count: int, size: int, whole: bool) -> list[str]:
    """Draw words; if the vocabulary is to be there as a whole, each word at least once."""
    shares = 1 / np.arange(1, size + 1)
    ids = generator.choice(size, size=count, p=shares / shares.sum())
    if whole:
        ids[:size] = np.arange(size)
    return [f"w{word}" for word in ids]


def _pairs(
    generator: np.random.Generator, rows: int, sizes: Sequence[int], whole: bool
) -> list[str]:
    """Draw pairs. Sentences are as long as in chat: 3 to 20 tokens, about 11 on average."""
    columns = []
    for size in sizes:
        lengths = np.clip(generator.gamma(6.0, 1.8, rows).astype(int), 3, 20)
        words = iter(_words(generator, int(lengths.sum()), size, whole))
        columns.append([" ".join(islice(words, int(length))) for length in lengths])
    return [f"{source}\t{target}" for source, target in zip(*columns, strict=True)]
