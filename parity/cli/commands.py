"""The commands of `parity`, also run as `python -m parity`.

The library's own stand here; a checkout adds those of its laboratory.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from parity import __version__
from parity.align.mapping import read, unmapped, write
from parity.align.proposal import propose
from parity.align.traps import traps
from parity.align.weights import carried, write_weights
from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.base.laboratory import of_laboratory
from parity.base.process import stop_signals_raise
from parity.base.text import command_text, counted, escaped
from parity.cli import doctor, localise, measure_bounds
from parity.cli.command_line import PathType
from parity.compare.choice import Choice
from parity.report.assertion import CAUSE_SECONDS, compared, read_measured
from parity.report.save import save_values, utf_8
from parity.report.table import wrapped
from parity.report.terminal import coloured, headline, report_text, verdict_line
from parity.report.verdict_page import report_html
from parity.trace.folder import LAST_STEP, check_no_part
from parity.trace.ranks import open_side
from parity.trace.reader import Trace
from parity.trace.side import labels_of
from parity.trace.tolerances import Tolerance

MATCH, MISMATCH = 0, 1

_SUMMARY = "GITHUB_STEP_SUMMARY"
_LONGEST_SENTENCE = 200  # characters


class Command(click.Command):
    """A command, of which the list of commands says the first sentence in full."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence of the help."""
        return super().get_short_help_str(_LONGEST_SENTENCE)


class Commands(click.Group):
    """The library's commands and, in a checkout, those of the laboratory."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, which cleans up when a signal asks to stop."""
        with stop_signals_raise():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, the library's first."""
        return [*super().list_commands(ctx), *_laboratory()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by name; None if there is none."""
        found = super().get_command(ctx, cmd_name) or _laboratory().get(cmd_name)
        if found is None and not _laboratory():
            raise UsageError(
                f"parity has no command {cmd_name!r} here; allowed: "
                f"{', '.join(self.commands)}; those that train the two networks need a "
                "checkout, and in it `make setup`"
            )
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the two sections of commands."""
        sections = {
            "Commands": self.commands,
            "The two networks, in this checkout": _laboratory(),
        }
        for title, commands in sections.items():
            if commands:
                with formatter.section(title):
                    formatter.write_dl(
                        [
                            (name, each.get_short_help_str(_LONGEST_SENTENCE))
                            for name, each in commands.items()
                        ]
                    )


def _laboratory() -> dict[str, click.Command]:
    found: dict[str, click.Command] = of_laboratory("commands:COMMANDS") or {}
    return found


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="parity")
def parity() -> None:
    """Prove that a network trained in one framework is the same network in another.

    Exit status: 0 for a match, 1 for a mismatch, 2 for bad use or bad input, 3 for a numeric
    failure (a NaN or infinity), 74 if standard output is closed or full.
    """


def _at_least_0(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if not 0 <= value < math.inf:
        raise UsageError(f"{parameter.opts[0]} is {value!r}; allowed: >= 0")
    return value


def _two_traces(command: Any) -> Any:
    for name in ("trace_b", "trace_a"):
        command = click.argument(name, type=PathType())(command)
    return command


def _options(given: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return what adds several options to a command."""

    def add(command: Any) -> Any:
        for option in reversed(given):
            command = option(command)
        return command

    return add


_HOW_ALIKE = (
    click.option(
        "--tolerance",
        "tolerances",
        multiple=True,
        metavar="PATTERN=REL,FLOOR",
        help="how much a rung, or tensors whose names fit, may differ (may be repeated)",
    ),
    click.option(
        "--map",
        "map_file",
        type=PathType(),
        help="file of `parity align`: what of TRACE_A is what of TRACE_B",
    ),
    click.option(
        "--bounds",
        "bounds_file",
        type=PathType(),
        help="file of `parity bounds`: how far tensors may be apart that nobody declared",
    ),
)
_CHOICES = (
    click.option(
        "--after-mismatch",
        default=5,
        show_default=True,
        callback=_at_least_0,
        help="number of steps to measure after the first wrong one, to show whether the "
        "difference grows, stays or vanishes (at least 0)",
    ),
    click.option(
        "--cause-seconds",
        default=CAUSE_SECONDS,
        show_default=True,
        callback=_at_least_0,
        help="for traces of train.py: seconds that the oracle may take, at the first wrong "
        "step, to make suspected mistakes itself until one explains the difference; 0: no "
        "search (at least 0)",
    ),
    click.option(
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="compare tensors whose names fit, such as 'gradient/*' (may be repeated)",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="leave out tensors whose names fit (may be repeated)",
    ),
    click.option("--steps", metavar="FIRST:END", help="compare steps FIRST to END - 1"),
    *_HOW_ALIKE,
    click.option(
        "--allow-missing",
        is_flag=True,
        help="match although one side has tensors that the other lacks",
    ),
)


@parity.command("compare")
@_two_traces
@click.option(
    "--json",
    "json_file",
    type=PathType(),
    help="file to write the report to, as JSON; - prints it in place of the text",
)
@click.option(
    "--html",
    "html_file",
    type=PathType(),
    help="file to write the report to, as a page",
)
@click.option("--quiet", is_flag=True, help="print the verdict's line alone")
@click.option(
    "--github",
    is_flag=True,
    help="add the report to the summary of the GitHub Actions step that this runs in",
)
@_options(_CHOICES)
@click.option("--debug", is_flag=True, help="print the traceback of an error")
def compare_command(
    trace_a: Path,
    trace_b: Path,
    json_file: Path | None,
    html_file: Path | None,
    quiet: bool,
    github: bool,
    debug: bool,
    **values: Any,
) -> int:
    """Compare two recorded runs, tensor by tensor and step by step.

    TRACE_A and TRACE_B are folders that the Recorder of your own training wrote, or --trace of
    train.py; traces of train.py are compared with the oracle as well, and always whole.
    """
    for file in (json_file, html_file):
        if file is not None and file != Path("-"):
            check_no_part(file)
    summary = _summary() if github else None
    report = _compared(trace_a, trace_b, **values)
    if html_file is not None:
        write_whole(html_file, utf_8(report_html(report)))
    if json_file == Path("-"):
        click.echo(json.dumps(report, indent=2))
    else:
        if json_file is not None:
            save_values(report, json_file)
        text = escaped(verdict_line(report)) if quiet else report_text(report)
        click.echo(coloured(text, report))
    if summary is not None:
        _add_to(summary, report)
    return MATCH if report["verdict"] == "match" else MISMATCH


def _summary() -> Path:
    """Return the file in which GitHub Actions collects the summary of a step."""
    name = os.environ.get(_SUMMARY)
    if not name:
        raise UsageError(f"--github: {_SUMMARY} is not set; allowed: a step of GitHub Actions")
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"--github: {_SUMMARY} is {name!r}; allowed: a regular file")
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"--github: {_SUMMARY} is {name!r}: {error.strerror}") from None
    return path


def _add_to(summary: Path, report: dict[str, Any]) -> None:
    """Append a report: other commands of the step have summaries in this file, too."""
    text = report_text(report)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 3)  # none in a name ends it
    matched = report["verdict"] == "match"
    title = f"match: {headline(report)}" if matched else text.splitlines()[0]
    lines = f"### {escaped(title)}\n\n{fence}text\n{text}\n{fence}\n"
    try:
        with summary.open("ab") as file:
            file.write(utf_8(lines))
    except OSError as error:
        raise UsageError(f"--github: {summary}: {error.strerror}") from None


def _range(text: str | None) -> range | None:
    if text is None:
        return None
    first, colon, end = text.partition(":")
    try:
        found = range(int(first or 0), int(end) if end else LAST_STEP + 1)
    except ValueError:
        found = range(0)
    if not colon or not found or found[0] < 0:
        raise UsageError(f"--steps is {text!r}; allowed: FIRST:END, such as 0:10, 5: or :3")
    return found


def _tolerance(text: str) -> tuple[str, Tolerance]:
    key, _, bounds = text.rpartition("=")
    try:
        relative, floor = map(float, bounds.split(","))
    except ValueError:
        raise UsageError(
            f"--tolerance is {text!r}; allowed: PATTERN=REL,FLOOR, such as gradient=1e-4,1e-5"
        ) from None
    return key, Tolerance(relative, floor, reason="given with --tolerance")


@parity.command("report")
@_two_traces
@click.option(
    "--html",
    "html_file",
    type=PathType(),
    default=Path("out/report.html"),
    show_default=True,
    help="file to write the page to",
)
@_options(_CHOICES)
@click.option("--debug", is_flag=True, help="print the traceback of an error")
def report_command(
    trace_a: Path, trace_b: Path, html_file: Path, debug: bool, **values: Any
) -> int:
    """Compare two recorded runs and write the result as a page that opens offline.

    TRACE_A and TRACE_B are folders, as for the command `compare`.
    """
    check_no_part(html_file)
    report = _compared(trace_a, trace_b, **values)
    write_whole(html_file, utf_8(report_html(report)))
    print(f"page: {escaped(str(html_file))}\n{escaped(verdict_line(report))}")
    return MATCH if report["verdict"] == "match" else MISMATCH


def _compared(
    trace_a: Path,
    trace_b: Path,
    *,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    steps: str | None,
    tolerances: tuple[str, ...],
    map_file: Path | None,
    bounds_file: Path | None,
    allow_missing: bool,
    **values: Any,
) -> dict[str, Any]:
    """Return the report of two recorded runs as plain values; see `_CHOICES`."""
    choice = Choice(include, exclude, _range(steps), allow_missing)
    return compared(
        [open_side(trace_a), open_side(trace_b)],
        command_text(sys.argv),
        dict(map(_tolerance, tolerances)),
        choice=choice,
        mapping=map_file,
        bounds=bounds_file,
        **values,
    )


def _out(words: str, default: str | None = None) -> Any:
    return click.option(
        *("-o", "--out"),
        type=PathType(),
        default=default,
        show_default=True,
        required=default is None,
        help=words,
    )


@parity.command("align")
@_two_traces
@_out("file to write the map to", "map.yaml")
def align_command(trace_a: Path, trace_b: Path, out: Path) -> int:
    """Propose what of one watched training is what of another, as a file to be mended.

    TRACE_A and TRACE_B are folders that the watch of a framework wrote. Modules are paired by
    the order of their execution and their kind, which decides the layouts of their weights. A
    row that is not sure is not used until you say so in the file.
    """
    check_no_part(out)
    traces = [open_side(trace_a), open_side(trace_b)]
    mapping = propose(traces)
    write(mapping, out)
    doubtful = [row for row in mapping.rows if not row.use]
    for row in doubtful:
        print(wrapped(escaped(f"not sure: {' and '.join(row.units)}: {row.why}"), "  "))
    for trace, names in zip(traces, unmapped(traces, mapping), strict=True):
        for name in names:
            print(escaped(f"no partner: {name} of {trace.side.framework}"))
    sure = counted(len(mapping.rows) - len(doubtful), "row")
    print(f"map: {escaped(str(out))}: {sure} sure, {len(doubtful)} not")
    return 0


@parity.command("weights")
@click.argument("trace", type=PathType())
@click.option(
    "--map", "map_file", type=PathType(), required=True, help="file of `parity align`"
)
@click.option(
    "--after",
    type=int,
    metavar="STEP",
    help="write the weights after a step, and what the optimiser keeps; the first step is 0",
)
@_out("file to write: safetensors")
def weights_command(trace: Path, map_file: Path, after: int | None, out: Path) -> int:
    """Write the initial weights of one side in the names and layouts of the other.

    TRACE is a folder of either side of the map. The model of the other side takes the file by
    parity.torch.load(model, FILE), parity.paddle.load or parity.keras.load; with --after by
    load(model, FILE, optimizer).
    """
    check_no_part(out)
    mapping, given = read(map_file), open_side(trace)
    weights = carried(given, mapping, after)
    write_weights(weights, out)
    other = mapping.labels[1 - mapping.side_of(given)]
    for row in (row for row in mapping.rows if row.parameters and not row.use):
        told = f"left out: {' and '.join(row.units)}; say `use: true` in {map_file} to carry"
        print(wrapped(escaped(told), "  "))
    print(escaped(f"weights: {out}: {counted(len(weights), 'tensor')} for {other}"))
    return 0


@parity.command("bounds")
@click.argument("trace", type=PathType())
@click.argument("command", nargs=-1, required=True)
@_out("file to write the bounds to", "bounds.json")
def bounds_command(trace: Path, command: tuple[str, ...], out: Path) -> int:
    """Measure how far rounding takes a watched training, as bounds for `parity compare`.

    TRACE is the folder in which COMMAND, behind `--`, watches its training. It is run once
    as it is, and five times with the weights, inputs, outputs of modules and their gradients
    moved by one unit in the last place at random.
    """
    check_no_part(out)
    measure_bounds.write_bounds(Trace(trace), command, out)
    return 0


@parity.command("localise")
@_two_traces
@click.argument("command", nargs=-1, required=True)
@_options(_HOW_ALIKE)
def localise_command(
    trace_a: Path,
    trace_b: Path,
    command: tuple[str, ...],
    map_file: Path | None,
    tolerances: tuple[str, ...],
    bounds_file: Path | None,
) -> int:
    """Say which modules of a watched training are wrong by themselves in the first wrong step.

    TRACE_B is the folder in which COMMAND, behind `--`, watches its training. It is run again;
    in that step each module reads what TRACE_A recorded in place of what the module before it
    returned, and the gradients likewise.
    """
    mapping = None if map_file is None else read(map_file)
    bounds = None if bounds_file is None else read_measured(bounds_file, mapping)
    how_alike = dict(map(_tolerance, tolerances)), bounds
    matches = localise.localise([Trace(trace_a), Trace(trace_b)], mapping, command, *how_alike)
    return MATCH if matches else MISMATCH


@parity.command("doctor")
@click.argument("traces", nargs=-1, type=PathType())
def doctor_command(traces: tuple[Path, ...]) -> int:
    """Check the environment and say how to fix what is wrong with it.

    With two TRACES that the watch of a framework wrote, check these instead: print in which
    defaults, settings and conventions of their frameworks the two differ, and what aligns them.
    """
    if not traces:
        return doctor.report()
    if len(traces) != 2:
        raise UsageError(f"{counted(len(traces), 'trace')}; allowed: none, or two")
    return _differences(*map(open_side, traces))


def _differences(a: Trace, b: Trace) -> int:
    """Print in what two watched trainings differ; return 0 if in nothing, else 1."""
    found = traps([a, b])
    labels = labels_of([a.side, b.side], [a.folder, b.folder])
    width = max(map(len, labels))
    for each in found:
        more = f" and {len(each.where) - 1} more" if each.where[1:] else ""
        print(escaped(f"{each.where[0]}{more}: {each.what}"))
        for label, value in zip(labels, each.values, strict=False):
            print(escaped(f"  {label:{width}}  {value}"))
        print(escaped(f"  fix: {each.fix}"))
    print(counted(len(found), "difference") if found else "no difference found")
    return MISMATCH if found else MATCH
