"""What the tests of strategies demand of traces and runs that must be equal."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from conftest import STEPS

from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.training.checkpoint import load_checkpoint
from parity.twins.training.loss_table import read_losses


def assert_equal(*traces: Trace) -> None:
    """Compare traces with each other and the oracle, on every rung."""
    verdict = compare_traces(traces)
    assert verdict.matches, verdict.mismatches
    assert verdict.steps == STEPS
    for pair in verdict.pairs.values():
        assert max(distance.relative for distance in pair.values()) < 1e-11


def assert_copies_equal(trace: Trace, replicas: int) -> None:
    """Check that every step records the distances of all copies, and that they are zero."""
    for step in range(STEPS):
        recorded = trace.read(step)
        distances = [name for name in recorded if name.startswith("replicas/")]
        assert len(distances) == sum(n.startswith(("weight/", "optimizer/")) for n in recorded)
        assert all(np.array_equal(recorded[name], np.zeros(replicas)) for name in distances)


def differing(*traces: Trace) -> list[str]:
    """Return the names of the tensors whose bits differ between two traces."""
    found = []
    for step in range(STEPS):
        first, second = (trace.read(step) for trace in traces)
        assert first.keys() == second.keys()
        found += [k for k in first if first[k].tobytes() != second[k].tobytes()]
    return found


def assert_goes_on(whole: Path, parts: Sequence[Path], last: str) -> None:
    """Check that runs, each resumed from the one before, are to the bit one that never stopped.

    Args:
      whole: the folder of the run that never stopped.
      parts: the folders of the runs that resumed each other.
      last: the name of the checkpoint at the end.
    """
    steps = {}
    for folder in parts:
        steps |= {row[0]: row for row in read_losses(folder / "losses.csv")}
    assert [*steps.values()] == read_losses(whole / "losses.csv")
    evaluated = [perplexity for folder in parts for perplexity in _evaluations(folder)]
    expected = _evaluations(whole)
    # a run that stops within an epoch is evaluated there, too
    assert [each for each in evaluated if each in expected] == expected != []
    assert len(evaluated) - len(expected) < len(parts)
    ends = [load_checkpoint(each / "checkpoints" / last) for each in (whole, parts[-1])]
    first, second = (end.snapshot for end in ends)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def _evaluations(folder: Path) -> list[float]:
    """Return the validation perplexities of a run: after each epoch, and at its end."""
    summary = folder / "summary.json"
    return json.loads(summary.read_text())["valid_perplexity"]
