"""Pictures, drawn without a screen."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity.errors import UsageError
from parity.files import write_whole

# Fonts that hold Chinese characters, as common systems name them.
_CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "SimHei",
    "Microsoft YaHei",
    "PingFang SC",
)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure.

    Args:
      width, height: inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure whole or not at all; the name's ending says which kind of picture.

    Raises:
      UsageError: for an ending that is no kind of picture, or if it cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower()
    allowed = figure.canvas.get_supported_filetypes()
    if kind not in allowed:
        raise UsageError(
            f"{path}: no picture's name; allowed endings: {', '.join(sorted(allowed))}"
        )
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=150)
    write_whole(path, content.getvalue())


def plot_attention(
    sentences: Sequence[tuple[Sequence[str], Sequence[str], np.ndarray]], path: Path
) -> None:
    """Draw which source token each target token looked at, a panel a sentence.

    Args:
      sentences: source tokens, target tokens, weights [target, source].
      path: of the picture.

    Raises:
      UsageError: as `save_figure`.
    """
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    family = [name for name in _CHINESE_FONTS if name in installed] + ["DejaVu Sans"]
    rows = max(len(target) for _, target, _ in sentences)
    columns = sum(len(source) for source, _, _ in sentences)
    figure = new_figure(1.5 * len(sentences) + 0.45 * columns, 1.5 + 0.35 * rows)
    panels = figure.subplots(
        1, len(sentences), squeeze=False, width_ratios=[len(s) for s, _, _ in sentences]
    )[0]
    for axes, (source, target, weights) in zip(panels, sentences, strict=True):
        axes.imshow(weights, vmin=0, vmax=1, cmap="Greys", aspect="auto")
        axes.set_xticks(range(len(source)), source, rotation=60, ha="right", family=family)
        axes.set_yticks(range(len(target)), target, family=family)
    save_figure(figure, path)
