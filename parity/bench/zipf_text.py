"""Text of words drawn from a Zipf distribution, of just the sizes that are to be timed."""

from pathlib import Path

import numpy as np

from parity.base.files import make_folder, write_whole
from parity.spec.spec import Spec

_LINE = 25  # words of a line
_SPECIAL = 4  # entries of a vocabulary of pairs that are no words


def generated(spec: Spec, steps: int, out: Path) -> tuple[Spec, Path]:
    """Write text for a network, and return the spec that reads it, and where it is.

    Args:
      spec: its vocabularies are those of the text.
      steps: of training, for which there is enough without a second epoch.
      out: folder in which it gets a folder of its own.

    Raises:
      UsageError: if that cannot be written.
    """
    if spec.network == "seq2seq":
        spec = spec.replace(source_segmenter="spaces", target_segmenter="spaces")
        return spec, _pairs(spec, steps, out)
    return spec, _text(spec, steps, out)


def _text(spec: Spec, steps: int, out: Path) -> Path:
    """Write text with just the vocabulary asked for, and enough of it for all steps."""
    words = spec.model.vocabulary_size - 2  # beside <unk> and <eos>
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
            ids[:words] = np.arange(words)  # each word once at least
        lines = [
            " ".join(f"w{word}" for word in ids[start : start + _LINE])
            for start in range(0, count, _LINE)
        ]
        write_whole(folder / f"{split}.txt", ("\n".join(lines) + "\n").encode())
    return folder


def _pairs(spec: Spec, steps: int, out: Path) -> Path:
    """Write pairs with just the vocabularies asked for, and enough of them for all steps.

    Lengths are those of chat and of short sentences: 3 to 20 tokens, about 11 on average.
    """
    sizes = {
        "source": spec.model.source_vocabulary_size - _SPECIAL,
        "target": spec.model.target_vocabulary_size - _SPECIAL,
    }
    folder = out / f"zipf-{sizes['source']}-{sizes['target']}"
    rows = {
        "train": max(spec.training.batch_size * (steps + 1), -(-2 * max(sizes.values()) // 3)),
        "valid": 2 * spec.training.batch_size,
        "test": 2 * spec.training.batch_size,
    }
    make_folder(folder)
    generator = np.random.Generator(np.random.PCG64(1))
    for split, count in rows.items():
        columns = []
        for words in sizes.values():
            lengths = np.clip(generator.gamma(6.0, 1.8, count).astype(int), 3, 20)
            shares = 1 / np.arange(1, words + 1)
            ids = generator.choice(words, size=lengths.sum(), p=shares / shares.sum())
            if split == "train":
                ids[:words] = np.arange(words)  # each word once at least
            sentences = np.split(ids, np.cumsum(lengths)[:-1])
            columns.append([" ".join(f"w{word}" for word in line) for line in sentences])
        lines = [f"{source}\t{target}\n" for source, target in zip(*columns, strict=True)]
        write_whole(folder / f"{split}.tsv", "".join(lines).encode())
    return folder
