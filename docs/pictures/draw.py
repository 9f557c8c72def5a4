"""Draw the pictures of the documentation's pages of strategies.

    python -m docs.pictures.draw            draw every picture, in English and in Chinese
    python -m docs.pictures.draw --check    only say which are out of date; status 1 if any is

The files are docs/images/strategies/NAME.svg, and zh/NAME.svg there.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.pictures.chinese import chinese
from docs.pictures.flows import draw_flow
from docs.pictures.strategy_flows import FLOWS
from docs.pictures.timelines import TIMELINES

FOLDER = Path(__file__).resolve().parent.parent / "images" / "strategies"
LANGUAGES = {".": ("en", str), "zh": ("zh-CN", chinese)}  # a folder each


def drawn() -> Iterator[tuple[Path, str]]:
    """Yield the path of each picture, and the text of its file."""
    for folder, (language, say) in LANGUAGES.items():
        for name, flow in FLOWS.items():
            yield FOLDER / folder / f"{name}.svg", draw_flow(flow(), say, language)
        for name, draw in TIMELINES.items():
            yield FOLDER / folder / f"{name}.svg", draw(say, language)


def main() -> int:
    """Draw or check the pictures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    stale = 0
    for path, svg in drawn():
        if path.is_file() and path.read_text(encoding="utf-8") == svg:
            continue
        stale += 1
        print(f"{path.relative_to(FOLDER)}: {'out of date' if check else 'drawn'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(svg, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
