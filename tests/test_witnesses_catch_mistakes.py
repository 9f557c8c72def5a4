"""No witness is vacuous: each fails when a mistake is planted in the code that it witnesses.

The mistakes are in code that both sides and the oracle share, or in the oracle alone, where a
comparison of the sides would not show them.
"""

import ast
import re

import pytest
from planting import ROOT, TESTS, failures

from parity.twins.faults.patches import read_mistakes
from parity.twins.launch.edited_source import edited_texts

# each is found in SUBJECT/TEST, of tests/test_witness_SUBJECT.py
MISTAKES = read_mistakes(TESTS / "mistakes.patch")
SUBJECTS = sorted(
    path.stem.removeprefix("test_witness_") for path in TESTS.glob("test_witness_*.py")
)


def witnesses_of(subject: str) -> list[str]:
    """Return the names of a subject's tests."""
    tree = ast.parse((TESTS / f"test_witness_{subject}.py").read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name.removeprefix("test_") for name in names if name.startswith("test_")]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_every_mistake_still_applies(mistake):
    for file, edited in edited_texts(mistake.edits["tensorflow"], ROOT).items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(text))


def test_every_witness_has_a_mistake_that_it_catches():
    named = {place for mistake in MISTAKES for place in mistake.where}
    assert named == {f"{each}/{test}" for each in SUBJECTS for test in witnesses_of(each)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(each, marks=[pytest.mark.torch] if each == "pytorch" else [])
        for each in SUBJECTS
    ],
)
def test_witnesses_catch_the_mistakes(subject):
    """And pass where nothing is planted, run in the same way."""
    jobs = [((), witnesses_of(subject))]
    for mistake in MISTAKES:
        places = (place.split("/") for place in mistake.where)
        if tests := [test for where, test in places if where == subject]:
            jobs.append((mistake.edits["tensorflow"], tests))
    failed = failures(f"test_witness_{subject}", jobs)
    expected = [dict.fromkeys(tests, bool(edits)) for edits, tests in jobs]
    assert failed == expected


def test_the_page_lists_every_file_of_witnesses():
    page = (ROOT / "docs" / "witnesses.md").read_text(encoding="utf-8")
    named = re.findall(r"tests/test_witness_(\w+)\.py", page)
    assert sorted(set(named)) == SUBJECTS
