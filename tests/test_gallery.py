"""Models that nobody here wrote: what docs/gallery.md says of each pair, found again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gallery import NETWORKS, PAIRS

ROOT = Path(__file__).resolve().parent.parent
ROWS = {
    line.split("`")[1]: line
    for line in (ROOT / "docs" / "gallery.md").read_text().splitlines()
    if line.startswith("| `")
}


def needs(name):
    """Return the markers of what trains a pair."""
    marks = [pytest.mark.jax] * ("jax" in name)
    return marks + [pytest.mark.gallery] * (name.split("-")[2] in NETWORKS[3:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gallery")


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("name", [pytest.param(n, marks=needs(n)) for n in ROWS])
def test_a_pair_is_as_the_page_says(folder, name):
    words = [sys.executable, "-W", "ignore", ROOT / "tests" / "gallery.py", folder, name]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(
        words, env=os.environ | paths, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # the share of a bound that rounding takes is another on another processor
    assert done.stdout.rsplit("|", 3)[0] == ROWS[name].rsplit("|", 3)[0]


def test_the_page_has_pairs_that_can_be_made():
    assert ROWS.keys() <= set(PAIRS)
