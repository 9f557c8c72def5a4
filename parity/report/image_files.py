"""Picture files: figures of attention, and the fonts that Chinese text needs."""

import importlib.util
import io
import logging
import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.base.progress import say

KINDS = ("pdf", "png", "svg")
MOST_PANELS = 16  # sentences in one picture
MOST_TOKENS = 100  # of a sentence

_LATIN = "DejaVu Sans"  # matplotlib's own
# Fonts with Chinese characters, by the name of the first font in their file, the only one that
# matplotlib reads: in Noto's collection that is the Japanese one.
_CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "Noto Sans CJK JP",
    "Noto Serif CJK SC",
    "Noto Serif CJK JP",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "AR PL UMing CN",
    "SimHei",
    "Microsoft YaHei",
    "PingFang SC",
    "PingFang HK",
)

# The source's tokens, the target's, and the attention weights [target, source].
Attention = tuple[Sequence[str], Sequence[str], np.ndarray]


def check_picture(path: Path) -> str:
    """Check, before any work, that a picture can be drawn; return its kind.

    Raises:
      UsageError: if the name's ending is no kind of picture, the path is a folder, or the
        library that draws is not installed.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise UsageError(
            f"{path}: not the name of a picture; allowed endings: {', '.join(KINDS)}"
        )
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; allowed: the name of a picture")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            f"{path}: drawing a picture needs matplotlib, which is not installed: install the "
            "extra `pictures` (pip install 'training-parity[pictures]')"
        )
    return kind


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure.

    Args:
      width, height: inches.
    """
    # its messages about the font cache help no user
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a file, completely or not at all; the name's ending decides the format.

    Characters that no installed font has are drawn as boxes, and printed.

    Raises:
      UsageError: as `check_picture`, or if the file cannot be written.
    """
    kind, content = check_picture(path), io.BytesIO()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        figure.savefig(content, format=kind, dpi=150)
    found = (re.match(r"Glyph (\d+) .* missing from", str(each.message)) for each in told)
    lacking = sorted({chr(int(each[1])) for each in found if each})
    if lacking:
        say(
            f"no font for {''.join(lacking[:5])!r}, drawn as boxes; allowed: install a Chinese "
            "font, such as the system's package fonts-noto-cjk or fonts-wqy-zenhei"
        )
    write_whole(path, content.getvalue())


def font_families() -> list[str]:
    """Return the fonts of text of a user's: the first that has a character draws it."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [_LATIN, *[name for name in _CHINESE if name in installed][:1]]


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
