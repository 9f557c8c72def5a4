"""No witness is vacuous: each fails when a mistake is planted in the code that it witnesses.

The mistakes are in code that both sides and the oracle share, or in the oracle alone, where a
comparison of the sides would not show them.
"""

import ast
import re

import pytest
from mistakes_in_inputs import INPUTS
from mistakes_in_results import RESULTS
from mistakes_in_text import TEXT
from planting import ROOT, TESTS, Mistake, failures

from parity.twins.launch.edited_source import Edit

MISTAKES = (*TEXT, *INPUTS, *RESULTS)
MODULES = sorted(path.stem for path in TESTS.glob("test_witness_*.py"))


def names_of_tests(module: str) -> list[str]:
    """Return the names of a module's tests."""
    tree = ast.parse((TESTS / f"{module}.py").read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_names_of_mistakes_are_unique():
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 20


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_every_mistake_still_applies(mistake: Mistake):
    text = (ROOT / mistake.file).read_text(encoding="utf-8")
    edited = Edit(mistake.file, mistake.old, mistake.new).apply(text)
    ast.parse(edited)
    assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(text))


@pytest.mark.parametrize("module", MODULES)
def test_every_witness_has_a_mistake_that_it_catches(module):
    caught = {name for mistake in MISTAKES for name in mistake.caught_by}
    assert [test for test in names_of_tests(module) if f"{module}::{test}" not in caught] == []


def test_every_witness_that_is_named_exists():
    existing = {f"{module}::{test}" for module in MODULES for test in names_of_tests(module)}
    named = {name for mistake in MISTAKES for name in mistake.caught_by}
    assert named <= existing


@pytest.mark.thorough
@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=[pytest.mark.torch] if "pytorch" in module else [])
        for module in MODULES
    ],
)
def test_witnesses_catch_the_mistakes(module):
    """And pass where nothing is planted, run in the same way."""
    jobs: list[tuple[Mistake | None, list[str]]] = [(None, names_of_tests(module))]
    for mistake in MISTAKES:
        named = (name.split("::") for name in mistake.caught_by)
        tests = [test for where, test in named if where == module]
        if tests:
            jobs.append((mistake, tests))
    unplanted, *planted = failures(module, jobs)
    assert unplanted == dict.fromkeys(names_of_tests(module), False)
    missed = {
        mistake.name: [test for test in tests if not failed.get(test)]
        for (mistake, tests), failed in zip(jobs[1:], planted, strict=True)
    }
    assert {name: tests for name, tests in missed.items() if tests} == {}


def test_the_page_lists_every_file_of_witnesses():
    page = (ROOT / "docs" / "witnesses.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"tests/(test_witness_\w+)\.py", page))) == MODULES
