"""Picture files, and the fonts that Chinese text needs."""

import importlib.util
import io
import logging
import re
import warnings
from pathlib import Path
from typing import Any

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.base.progress import say

KINDS = ("pdf", "png", "svg")

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
