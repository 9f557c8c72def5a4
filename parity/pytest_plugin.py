"""The fixture `parity` of pytest: `assert_match` whose pages and verdicts are kept for CI.

pytest finds it by the entry point of the installed package.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_LONGEST_NAME = 100  # characters: a file's name may have 255 bytes


class Comparisons:
    """What the fixture gives to one test.

    Args:
      record: records a property of the test in JUnit's XML.
      folder: where pages are written, None for nowhere.
      name: the test's name, of which those of its pages are made.
    """

    def __init__(self, record: Callable[[str, object], None], folder: Path | None, name: str):
        self._record, self._folder = record, folder
        self._name = re.sub(r"[^\w.-]+", "-", name).strip("-")[-_LONGEST_NAME:]
        self._count = 0

    def assert_match(self, a: Any, b: Any, **options: Any) -> dict[str, Any]:
        """Assert that two trainings match; the arguments are those of `parity.assert_match`."""
        # here, because pytest loads this module in every project of the environment
        from parity.report.assertion import assert_match
        from parity.report.terminal import headline

        __tracebackhide__ = True  # pytest then shows the test's line
        self._count += 1
        if self._folder is not None:
            number = f"-{self._count}" if self._count > 1 else ""
            options.setdefault("html", self._folder / f"{self._name}{number}.html")
        try:
            report = assert_match(a, b, **options)
        except AssertionError as error:
            self._record("parity", str(error).splitlines()[0])
            raise
        self._record("parity", f"match: {headline(report)}")
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add where pages are written."""
    parser.getgroup("parity").addoption(
        "--parity-html",
        type=Path,
        metavar="FOLDER",
        help="write the page of each comparison of the fixture `parity` into FOLDER",
    )


@pytest.fixture
def parity(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Comparisons:
    """Compare recorded trainings: `parity.assert_match(a, b)`."""
    folder = request.config.getoption("--parity-html")
    return Comparisons(record_property, folder, request.node.nodeid)
