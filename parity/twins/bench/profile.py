"""`python -m parity profile`: shows where the time of a step goes on each side."""

import json
import shutil
from collections.abc import Mapping
from typing import Any

from parity.base.files import make_folder, write_whole
from parity.base.progress import ProgressBar
from parity.report.save import save_report
from parity.report.table import Table
from parity.twins.cli.options import ProfileOptions
from parity.twins.launch.processes import SideProcess, shared_options
from parity.twins.launch.zipf_text import write_zipf_text
from parity.twins.run.choose_sides import parse_strategies
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.timeline import PHASES, TABLE, TRACE, joined_traces


def profile(spec: Spec, options: ProfileOptions, command: str) -> dict[str, Any]:
    """Profile one side after the other, each alone on the machine.

    Three files are written to `options.out`: trace.json, a Chrome trace of both sides,
    profile.json and profile.txt.

    Args:
      spec: the network, its text and its training.
      options: how to train, and where to write.
      command: the command that the user typed, which is recorded.

    Returns:
      The profile as plain values: `network`, `preset`, `command`, and `sides` (name of a side
      -> the values that `profile_training` wrote). A side is named by its framework
      and, if `--strategy` is given, its strategy.

    Raises:
      UsageError: for input that a side cannot use, or an unknown strategy.
      NumericFailure: for a NaN or infinity.
    """
    sides = _sides(options)
    make_folder(options.out)
    data = options.data
    if data is None:
        spec, data = write_zipf_text(spec, options.steps, options.out)
    tables, traces = {}, []
    with ProgressBar("profiling", len(sides), "side") as progress:
        for name, (framework, entry) in sides.items():
            folder = options.out / name.replace(" ", "-")
            with SideProcess(
                framework,
                spec,
                options.out / "logs" / f"{folder.name}.log",
                **shared_options(options) | {"data": data},
                strategy=entry.name,
                **entry.settings(options.settings).given,
                steps=options.steps,
                profile=folder,
            ) as side:
                side.wait()
            tables[name] = json.loads((folder / TABLE).read_text())
            traces.append(json.loads((folder / TRACE).read_text()))
            shutil.rmtree(folder)
            progress.update(name)
    values = {
        "network": spec.network,
        "preset": options.preset,
        "sides": tables,
        "command": command,
    }
    write_whole(options.out / "trace.json", json.dumps(joined_traces(traces)).encode())
    save_report("profile", profile_text(values, options.operations), values, options.out)
    return values


def _sides(options: ProfileOptions) -> dict[str, tuple[str, StrategyEntry]]:
    """Return the framework and the strategy of each side to profile, by the side's name.

    Raises:
      UsageError: for an unknown strategy, or a setting that none takes.
    """
    return {
        f"{framework} {entry.name}" if options.strategy else framework: (framework, entry)
        for framework, entries in parse_strategies(options.strategy, options.settings).items()
        for entry in entries
    }


def profile_text(values: Mapping[str, Any], operations: int) -> str:
    """Return a profile as tables for a terminal.

    Args:
      values: the values that `profile` returned.
      operations: the number of operations to list for each side.
    """
    sides = values["sides"]
    first = next(iter(sides.values()))
    lines = [
        f"{first['replicas']} x {first['threads']} (replicas x threads), "
        f"{first['steps']} profiled steps of each side; milliseconds per step",
        "",
        _phases(sides),
        "",
        "The time of a phase is the time of its operations on all replicas, divided by the "
        "number of replicas, or stages of them, that run at the same time; idle is the rest of "
        "the step.",
    ]
    for name, side in sides.items():
        rows = [
            [
                each["operation"],
                each["phase"],
                f"{each['calls']:,.0f}",
                f"{each['milliseconds']:.2f}",
                f"{each['milliseconds'] / side['milliseconds_per_step']:.1%}",
            ]
            for each in side["operations"][:operations]
        ]
        headers = ["operation", "phase", "calls", "ms", "share of step"]
        lines += ["", f"{name}:", Table(headers, rows).text()]
    return "\n".join(lines)


def _phases(sides: Mapping[str, Any]) -> str:
    rows = [
        [phase, *(_share(side["phases"][phase], side) for side in sides.values())]
        for phase in PHASES
    ]
    rows += [
        ["idle", *(_share(side["idle"], side) for side in sides.values())],
        ["whole step", *(f"{side['milliseconds_per_step']:.1f}" for side in sides.values())],
        [
            "unprofiled",
            *(f"{side['unprofiled_milliseconds_per_step']:.1f}" for side in sides.values()),
        ],
    ]
    return Table(["phase", *sides], rows).text()


def _share(milliseconds: float, side: Mapping[str, Any]) -> str:
    return f"{milliseconds:.1f} ({milliseconds / side['milliseconds_per_step']:.0%})"
