"""A picture of attention: what each word of an answer was made from."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.twins.training.image_files import (
    check_picture,
    font_families,
    new_figure,
    save_figure,
)

MOST_PANELS = 16  # sentences in one picture
MOST_TOKENS = 100  # of a sentence

# The source's tokens, the target's, and the attention weights [target, source].
Attention = tuple[Sequence[str], Sequence[str], np.ndarray]


def check_attention(path: Path, lengths: Sequence[int], most: int) -> None:
    """Check, before any work, that a picture of attention can be drawn.

    Args:
      lengths: the number of tokens of each source.
      most: the largest number of tokens of a target.

    Raises:
      UsageError: as `check_picture`, or if there is more than fits one picture.
    """
    check_picture(path)
    if len(lengths) > MOST_PANELS:
        raise UsageError(
            f"{path}: a picture of {len(lengths):,} sentences; allowed: {MOST_PANELS}"
        )
    longest = max(*lengths, most)
    if longest > MOST_TOKENS:
        raise UsageError(
            f"{path}: a picture of up to {longest:,} tokens in a row; allowed: {MOST_TOKENS}"
        )


def plot_attention(sentences: Sequence[Attention], path: Path) -> None:
    """Draw how much each target token attended to each source token, a panel per sentence.

    Raises:
      UsageError: as `save_figure`.
    """
    save_figure(attention_figure(sentences), path)


def attention_figure(sentences: Sequence[Attention]) -> Any:
    """Return a figure of attention weights, its panels in a square, the first at the top left.

    A panel has the source from left to right and the target downwards; black is a weight of 1,
    as the scale at the right says. Several panels are numbered in the order of the questions.
    """
    columns = math.ceil(math.sqrt(len(sentences)))
    rows = math.ceil(len(sentences) / columns)
    width = 2.5 + 0.45 * max(len(source) for source, _, _ in sentences)
    height = 2.0 + 0.35 * max(len(target) for _, target, _ in sentences)
    figure = new_figure(width * columns, height * rows)
    # a token may hold dollar signs, between which matplotlib would see a formula
    style = {"family": font_families(), "parse_math": False}
    panels = []
    for number, (source, target, weights) in enumerate(sentences, start=1):
        axes = figure.add_subplot(rows, columns, number)
        panels.append(axes)
        if len(sentences) > 1:
            axes.set_title(f"question {number}", fontsize="medium")
        axes.set_xlabel("word of the question")
        axes.set_ylabel("word of the answer")
        image = axes.imshow(weights, vmin=0, vmax=1, cmap="Greys", aspect="auto")
        axes.set_xticks(range(len(source)), source, rotation=60, ha="right", **style)
        axes.set_yticks(range(len(target)), target, **style)
    figure.suptitle("Attention: what each word of an answer was made from", wrap=True)
    figure.colorbar(image, ax=panels, label="weight")
    return figure
