"""The comparison as an assertion, for test suites."""

import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from parity.align.mapping import NameMapping, read
from parity.base.errors import NumericFailure, UsageError
from parity.base.files import check_output, write_whole
from parity.base.laboratory import of_laboratory
from parity.compare.choice import WHOLE, Choice, chosen
from parity.compare.measured_bounds import MeasuredBounds, read_bounds
from parity.compare.recorded_pair import compare_pair
from parity.report.pair_values import pair_values
from parity.report.terminal import headline, report_text
from parity.trace.ranks import join_ranks, open_side
from parity.trace.reader import Trace
from parity.trace.tolerances import Tolerance, check_declared

# How long the laboratory's oracle may look for the mistake that explains a difference.
CAUSE_SECONDS = 30.0


class Report(dict[str, Any]):
    """A report as plain values, which a notebook shows in a few lines."""

    def _repr_html_(self) -> str:
        rungs = ", ".join(
            f"{rung} {'-' if (far := each['worst_relative']) is None else f'{far:.1e}'}"
            for rung, each in self["rungs"].items()
        )
        first = f"{self['verdict']}: {headline(self)}"
        return f"<pre>{escape(first)}\nworst relative distances: {escape(rungs)}</pre>"


def assert_match(
    a: str | Path | Trace,
    b: str | Path | Trace,
    *,
    tolerances: Mapping[str, Tolerance] | None = None,
    html: str | Path | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    steps: range | None = None,
    allow_missing: bool = False,
    mapping: str | Path | None = None,
    bounds: str | Path | None = None,
) -> Report:
    """Assert that two recorded trainings match in every tensor of every step.

    Args:
      a, b: traces or their folders: two of a `Recorder`, or two of a `train.py`, which are then
        compared with the oracle as well.
      tolerances: rung, or pattern of names -> tolerance; they replace those that the traces
        declare under the same key. For traces of a Recorder only.
      html: where to write the report as a page, whether they match or not; no page is written
        for traces that cannot be compared.
      include, exclude: patterns of names: which tensors are compared. For traces of a Recorder
        only, as is the rest.
      steps: which steps are compared; None: all.
      allow_missing: whether they match although one side has tensors that the other lacks.
      mapping: the file of `parity align` that says what of a is what of b.
      bounds: the file of `parity bounds` that says how far tensors may be apart.

    Returns:
      The report, as `parity compare --json` writes it; a notebook shows its verdict.

    Raises:
      AssertionError: if they do not match, cannot be compared, or hold a NaN or an infinity;
        its message is the report.
      UsageError: if there is no trace, or a tolerance is not allowed.
    """
    __tracebackhide__ = True  # pytest then shows the test's line
    traces = [each if isinstance(each, Trace) else open_side(Path(each)) for each in (a, b)]
    check_declared(tolerances or {})
    if tolerances and not any(trace.of_recorder for trace in traces):
        raise UsageError(
            "tolerances are given for traces of train.py; allowed: for those of a Recorder; "
            "train.py's have bounds of their own, see docs/verdict.md"
        )
    page = None if html is None else Path(html)
    if page is not None:
        check_output(page)
    try:
        choice = Choice(tuple(include), tuple(exclude), steps, allow_missing)
        values = compared(
            traces, _command(), tolerances, choice=choice, mapping=mapping, bounds=bounds
        )
    except (UsageError, NumericFailure) as error:
        message = f"{error}\npage: not written" if page is not None else str(error)
        raise AssertionError(message) from None
    written = ""
    if page is not None:
        from parity.report.verdict_page import report_html  # here: nothing else needs Jinja

        write_whole(page, report_html(values).encode())
        written = f"\npage: {page}"
    if values["verdict"] != "match":
        raise AssertionError(f"{report_text(values)}{written}")
    for label, where in values["runs"][0].get("cut", {}).items():
        raise AssertionError(f"{label} was {where}; allowed: whole traces{written}")
    return Report(values)


def compared(
    traces: list[Trace],
    command: str,
    tolerances: Mapping[str, Tolerance] | None = None,
    after_mismatch: int = 0,
    cause_seconds: float = CAUSE_SECONDS,
    choice: Choice = WHOLE,
    mapping: str | Path | None = None,
    bounds: str | Path | None = None,
) -> dict[str, Any]:
    """Return the report of two recorded trainings as plain values.

    Args:
      traces: the two.
      command: what the user ran, for the record.
      tolerances: as for `assert_match`.
      after_mismatch: the number of steps to measure after the first that has a mismatch.
      cause_seconds: how long the search for a confirmed cause may take; 0 for no search.
      choice: which tensors of which steps are compared.
      mapping: the file of `parity align` that says what of one trace is what of the other.
      bounds: the file of `parity bounds`, of either side.

    Raises:
      UsageError: if they cannot be compared, or one is damaged.
      NumericFailure: for a NaN or infinity.
    """
    started = time.monotonic()
    # recorded numbers may be as large as floating point goes: no warning, but a verdict
    with np.errstate(all="ignore"):
        if any(trace.of_recorder for trace in traces):
            named = None if mapping is None else read(Path(mapping))
            renamed = traces if named is None else named.mapped(traces)
            measured = None if bounds is None else read_measured(Path(bounds), named)
            sides = [trace.side.framework for trace in traces]
            if measured is not None and named is None and measured.side not in sides:
                told = f"is of {measured.side}; allowed: of {' or '.join(sides)}"
                raise UsageError(f"{bounds}: {told}")
            join_ranks(renamed)
            parts, only = chosen(renamed, choice)
            of_pair = compare_pair(parts, tolerances, after_mismatch, measured)
            seconds = time.monotonic() - started
            missing = choice.allow_missing
            return pair_values(traces, of_pair, command, seconds, only, missing, named)
        if choice != WHOLE or tolerances or (mapping, bounds) != (None, None):
            raise UsageError(
                "a part of traces of train.py, or a tolerance, bounds or a map for them, is "
                "asked for; allowed: for those of a Recorder"
            )
        compare_run = of_laboratory("compare.values:compare_recorded")
        assert compare_run is not None  # or `Trace` had not read the headers
        values: dict[str, Any] = compare_run(traces, command, after_mismatch, cause_seconds)
        return values


def read_measured(path: Path, mapping: NameMapping | None) -> MeasuredBounds:
    """Return measured bounds in the names that both sides share.

    Args:
      path: the file of `parity bounds`.
      mapping: of the sides, one of which the bounds are of; None if they share their names.

    Raises:
      UsageError: if the file cannot be read, or is of neither side.
    """
    bounds = read_bounds(path)
    if mapping is None:
        return bounds
    labels = sorted((0, 1), key=lambda side: mapping.labels[side] != bounds.side)
    for side in labels:
        mine = {n for each in mapping.parameters().values() for n in each[side].names}
        if any(f"weight/{name}" in bounds.tensors for name in mine):
            sources = mapping.name_map(side).sources(bounds.tensors)
            return bounds.renamed({name: each.given for name, each in sources.items()})
    raise UsageError(f"{path}: is of neither side of the map; allowed: of one of its sides")


def _command() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "assert_match")
