"""Models that nobody here wrote: what docs/gallery.md says of each pair, found again."""

from pathlib import Path

import pytest
from gallery import NETWORKS, PAIRS, line, record

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
def folder(once, request):
    """Return the folder of all pairs that are tested."""
    of = [getattr(each, "callspec", None) for each in request.session.items]
    names = [each.params["name"] for each in of if each and each.params.get("name") in ROWS]
    return once.fill(["gallery"], lambda folders: record(folders[0], names))[0]


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("name", [pytest.param(n, marks=needs(n)) for n in ROWS])
def test_a_pair_is_as_the_page_says(folder, name):
    # the share of a bound that rounding takes is another on another processor
    assert line(folder, name).rsplit("|", 3)[0] == ROWS[name].rsplit("|", 3)[0]


def test_the_page_has_pairs_that_can_be_made():
    assert ROWS.keys() <= set(PAIRS)
