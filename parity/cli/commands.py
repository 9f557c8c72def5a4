"""The commands of `parity`, also run as `python -m parity`.

The library's own stand here; a checkout adds those of its laboratory.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from parity import __version__
from parity.base.errors import UsageError
from parity.base.fields import check_fields, option
from parity.base.files import make_folder, write_whole
from parity.base.laboratory import of_laboratory
from parity.base.text import command_text, escaped
from parity.cli import doctor
from parity.cli.command_line import add_options, take_options
from parity.report.assertion import CAUSE_SECONDS, compared
from parity.report.coverage_table import verdict_line
from parity.report.save import save_values, utf_8
from parity.report.terminal import coloured, report_text
from parity.report.verdict_page import report_html
from parity.trace.reader import Trace

MATCH, MISMATCH = 0, 1

_LONGEST_SENTENCE = 200  # characters
_STEPS_AFTER = 5
_AFTER_MISMATCH = "number of steps to measure after the first wrong one, to show whether the difference grows, stays or vanishes"  # noqa: E501
_CAUSE_SEARCH = "for traces of train.py: seconds that the oracle may take, at the first wrong step, to make suspected mistakes itself until one explains the difference; 0: no search"  # noqa: E501


@dataclass(frozen=True)
class MismatchOptions:
    """What follows a mismatch of two recorded traces: options of `compare` and `report`."""

    after_mismatch: int = option(_STEPS_AFTER, _AFTER_MISMATCH, at_least=0)
    cause_seconds: float = option(CAUSE_SECONDS, _CAUSE_SEARCH, at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)


class Command(click.Command):
    """A command, of which the list of commands says the first sentence in full."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first sentence of the help."""
        return super().get_short_help_str(_LONGEST_SENTENCE)


class Commands(click.Group):
    """The library's commands and, in a checkout, those of the laboratory."""

    command_class = Command

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


def _mismatch_options(command: Any) -> Any:
    return add_options(MismatchOptions, command, defaults=True)


@parity.command("compare")
@click.argument("trace_a", type=click.Path(path_type=Path))
@click.argument("trace_b", type=click.Path(path_type=Path))
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="file to write the report to, as JSON",
)
@_mismatch_options
@click.option("--debug", is_flag=True, help="print the traceback of an error")
def compare_command(
    trace_a: Path, trace_b: Path, json_file: Path | None, debug: bool, **values: Any
) -> int:
    """Compare two recorded runs, tensor by tensor and step by step.

    TRACE_A and TRACE_B are folders that the Recorder of your own training wrote, or --trace of
    train.py; traces of train.py are compared with the oracle as well.
    """
    report = _compared(trace_a, trace_b, take_options(MismatchOptions, values))
    text = report_text(report)
    if json_file is not None:
        save_values(report, json_file)
    click.echo(coloured(text, report))
    return MATCH if report["verdict"] == "match" else MISMATCH


@parity.command("report")
@click.argument("trace_a", type=click.Path(path_type=Path))
@click.argument("trace_b", type=click.Path(path_type=Path))
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path),
    default=Path("out/report.html"),
    show_default=True,
    help="file to write the page to",
)
@_mismatch_options
@click.option("--debug", is_flag=True, help="print the traceback of an error")
def report_command(
    trace_a: Path, trace_b: Path, html_file: Path, debug: bool, **values: Any
) -> int:
    """Compare two recorded runs and write the result as a page that opens offline.

    TRACE_A and TRACE_B are folders, as for the command `compare`.
    """
    options = take_options(MismatchOptions, values)
    if html_file.is_dir():
        raise UsageError(f"{html_file}: is a folder; allowed: a page's name")
    make_folder(html_file.parent)  # fail now, not after minutes of comparing
    report = _compared(trace_a, trace_b, options)
    write_whole(html_file, utf_8(report_html(report)))
    print(f"page: {escaped(str(html_file))}\n{escaped(verdict_line(report))}")
    return MATCH if report["verdict"] == "match" else MISMATCH


def _compared(trace_a: Path, trace_b: Path, options: MismatchOptions) -> dict[str, Any]:
    """Return the report of two recorded runs as plain values."""
    return compared(
        [Trace(trace_a), Trace(trace_b)],
        command_text(sys.argv),
        after_mismatch=options.after_mismatch,
        cause_seconds=options.cause_seconds,
    )


@parity.command("doctor")
def doctor_command() -> int:
    """Check the environment and say how to fix what is wrong with it."""
    return doctor.report()
