"""Writes text to time with: words from a Zipf distribution, with an exact vocabulary size."""

from collections.abc import Sequence
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
    return spec, (_pairs if form.pairs else _text)(spec, sizes, steps, out)


def _text(spec: Spec, sizes: Sequence[int], steps: int, out: Path) -> Path:
    """Write running text with exactly the spec's vocabulary, enough for all steps."""
    (words,) = sizes
    folder = out / f"zipf-{words}"
    needed = spec.training.batch_size * spec.text.time
    counts = {
        "train": max(needed * (steps + 1), 2 * words),
        "valid": 2 * needed,
        "test": 2 * needed,
    }
    make_folder(folder)
    generator = np.random.Generator(np.random.PCG64(1))
    shares = 1 / np.arange(1, words + 1)
    for split, count in counts.items():
        ids = generator.choice(words, size=count, p=shares / shares.sum())
        if split == "train":
            ids[:words] = np.arange(words)  # every word at least once
        lines = [
            " ".join(f"w{word}" for word in ids[start : start + _WORDS_PER_LINE])
            for start in range(0, count, _WORDS_PER_LINE)
        ]
        write_whole(folder / f"{split}.txt", ("\n".join(lines) + "\n").encode())
    return folder


def _pairs(spec: Spec, sizes: Sequence[int], steps: int, out: Path) -> Path:
    """Write pairs with exactly the spec's vocabularies, enough for all steps.

    Sentences are as long as those of chat: 3 to 20 tokens, about 11 on average.
    """
    folder = out / f"zipf-{'-'.join(map(str, sizes))}"
    rows = {
        "train": max(spec.training.batch_size * (steps + 1), -(-2 * max(sizes) // 3)),
        "valid": 2 * spec.training.batch_size,
        "test": 2 * spec.training.batch_size,
    }
    make_folder(folder)
    generator = np.random.Generator(np.random.PCG64(1))
    for split, count in rows.items():
        columns = []
        for words in sizes:
            lengths = np.clip(generator.gamma(6.0, 1.8, count).astype(int), 3, 20)
            shares = 1 / np.arange(1, words + 1)
            ids = generator.choice(words, size=lengths.sum(), p=shares / shares.sum())
            if split == "train":
                ids[:words] = np.arange(words)  # every word at least once
            sentences = np.split(ids, np.cumsum(lengths)[:-1])
            columns.append([" ".join(f"w{word}" for word in line) for line in sentences])
        lines = [f"{source}\t{target}\n" for source, target in zip(*columns, strict=True)]
        write_whole(folder / f"{split}.tsv", "".join(lines).encode())
    return folder
