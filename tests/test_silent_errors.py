"""Published silent errors of training: what docs/silent-errors.md says of each, found again."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.report.assertion import compared
from parity.report.terminal import report_text
from parity.trace.ranks import open_side

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "silent-errors.md"


def rows():
    """Return name -> the other cells, of the tables of the page."""
    cells = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    return {
        each[0].split("`")[1]: each[1:]
        for each in cells
        if len(each) == 5 and each[0][0] == "`"
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record all of them, and return the folder."""
    folder = tmp_path_factory.mktemp("silent")
    script = [sys.executable, "-W", "ignore", ROOT / "tests" / "silent_errors.py", folder]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def loss_apart(a, b):
    """Return how far two steps' losses are apart, as a share of the first."""
    a, b = (
        np.mean([array for name, array in step.items() if name.startswith("loss/")])
        for step in (a, b)
    )
    return abs(b / a - 1)


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("name", rows())
def test_it_is_found_in_its_first_wrong_step(recorded, name):
    _, tensor, says, apart = rows()[name]
    sides = [open_side(recorded / name / side) for side in ("right", "wrong")]
    values = compared(sides, "")
    first = values["first_mismatch"]
    assert tensor == f"`{first['tensor']}`, step {first['step']}"
    said = " ".join(report_text(values).split("\n\n")[0].split())
    for part in re.findall(r"“(.*?)”", says):
        assert part in said
    now = (side.read(first["step"]) for side in sides)
    assert apart == f"{loss_apart(*now):.1%}".replace("%", " %")


@pytest.mark.thorough
@pytest.mark.torch
def test_the_page_has_all_of_them(recorded):
    assert {each.name for each in recorded.iterdir() if each.is_dir()} == set(rows())
