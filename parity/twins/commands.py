"""The commands of the laboratory, which `parity` has in a checkout.

A command that trains imports its code only when it is called: that code may need packages that
are not among the core dependencies.
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import click

from parity.base.files import check_output
from parity.base.locks import only_writer
from parity.base.machine import measured_here
from parity.base.text import command_text, escaped
from parity.cli.command_line import PathType
from parity.cli.commands import MATCH, MISMATCH
from parity.report.save import save_report, save_values
from parity.report.terminal import coloured, report_text
from parity.report.verdict_page import report_html
from parity.twins.cli.command_line import command_options, spec_from, spec_options, take_options
from parity.twins.cli.config import config_options, config_text, errors_name_config, is_given
from parity.twins.cli.help import GroupedCommand
from parity.twins.cli.options import (
    BenchOptions,
    ConvergeOptions,
    FaultOptions,
    ProfileOptions,
    RunOptions,
    ScaleOptions,
    SweepOptions,
)
from parity.twins.compare.values import report_values
from parity.twins.launch.checkout import require_frameworks
from parity.twins.spec.networks import NETWORKS, preset_to_compare
from parity.twins.training.loss_curves import plot_losses


@click.command("run", cls=GroupedCommand)
@config_options
@command_options(RunOptions)
@spec_options("dtype")
def run_command(print_config: bool, **values: Any) -> int:
    """Train both sides beside the oracle and compare every tensor of every step."""
    from parity.twins.run.choose_sides import frameworks_of, resolved

    started = time.monotonic()
    with errors_name_config():
        if is_given("steps") and not is_given("throughput"):
            values["throughput"] = False
        options = take_options(RunOptions, values)
        built_in_text = options.data is None
        name = options.preset or preset_to_compare(options.network, built_in_text=built_in_text)
        options = dataclasses.replace(options, preset=name)
        spec = spec_from(options.network, name, values)
        require_frameworks("run", frameworks_of(options))
        if print_config:
            click.echo(config_text(resolved(options), spec), nl=False)
            return 0
        from parity.twins.run.proof import run  # of packages that only a training needs

        with only_writer(options.out):
            outcome = run(spec, options)
            seconds = time.monotonic() - started
            report = report_values(outcome, name, _command(), seconds)
            text = report_text(report)
            page = report_html(report)
            save_report("report", text, report, options.out, options.json, page)
    click.echo(coloured(text, report))
    return MATCH if outcome.matches else MISMATCH


def _options(cls: type, values: dict[str, Any]) -> Any:
    """Return a command's options, whose --json can be written: not told after hours of work."""
    options = take_options(cls, values)
    if options.json is not None:
        check_output(options.json)
    return options


@click.command("bench", cls=GroupedCommand)
@command_options(BenchOptions)
@spec_options()
def bench_command(**values: Any) -> int:
    """Measure the speed of both sides in real tokens/s, and the gain from more replicas."""
    require_frameworks("bench")
    from parity.twins.bench.report import bench_text
    from parity.twins.bench.timing import bench

    options = _options(BenchOptions, values)
    of_strategies = bool(options.strategies)
    names = (options.preset,) if options.preset else _benchmarks(options.network, of_strategies)
    specs = {name: spec_from(options.network, name, values) for name in names}
    results = []
    for name, spec in specs.items():
        out = options.out if len(specs) == 1 else options.out / name
        preset_options = dataclasses.replace(options, preset=name, out=out, json=None)
        results.append(bench(spec, preset_options, _command()))
        print(bench_text(results[-1]) + ("\n" if len(results) < len(specs) else ""))
    if options.json is not None:
        save_values(results[0] if len(results) == 1 else {"benches": results}, options.json)
    return 0


@click.command("converge", cls=GroupedCommand)
@command_options(ConvergeOptions)
@spec_options()
def converge_command(**values: Any) -> int:
    """Train both sides to the end from several seeds and test whether they learn equally well.

    Exit status: 0 if equivalence is shown, or no two sides are meant to train in the same way;
    1 if it is not shown, 2 for bad use, 3 if a training diverges.
    """
    require_frameworks("converge")
    from parity.twins.converge.converging import NOT_SHOWN, converge
    from parity.twins.converge.report import converge_html, converge_text

    options = _options(ConvergeOptions, values)
    spec = spec_from(options.network, options.preset, values)
    found = converge(spec, options, _command())
    text = converge_text(found)
    save_report("converge", text, found, options.out, options.json, converge_html(found))
    print(text)
    return MISMATCH if found["verdict"] == NOT_SHOWN else MATCH


@click.command("profile", cls=GroupedCommand)
@command_options(ProfileOptions)
@spec_options()
def profile_command(**values: Any) -> int:
    """Show where the time of a step goes on each side, using the frameworks' profilers."""
    require_frameworks("profile")
    from parity.twins.bench.profile import profile, profile_text

    options = _options(ProfileOptions, values)
    name = options.preset or _benchmarks(options.network)[0]
    spec = spec_from(options.network, name, values)
    profiled = profile(spec, dataclasses.replace(options, preset=name), _command())
    if options.json is not None:
        save_values(profiled, options.json)
    print(profile_text(profiled, options.operations))
    timeline = escaped(str(options.out / "trace.json"))
    print(f"\ntimeline for chrome://tracing or ui.perfetto.dev: {timeline}")
    return 0


@click.command("faults", cls=GroupedCommand)
@command_options(FaultOptions)
def faults_command(**values: Any) -> int:
    """Plant known mistakes in one side's code, one at a time, and check that all are found."""
    options = _options(FaultOptions, values)
    from parity.twins.faults.listing import catalogue_text, fault_text

    if options.list_only or options.show is not None:
        print(catalogue_text() if options.show is None else fault_text(options.show))
        return 0
    require_frameworks("faults")
    from parity.twins.faults.finding import findings_text, findings_values
    from parity.twins.faults.hunt import hunt

    findings = hunt(options)
    text, found = findings_text(findings), findings_values(findings) | _measured()
    save_report("faults", text, found, options.out, options.json)
    print(text)
    return MATCH if found["all_found"] else MISMATCH


@click.command("sweep", cls=GroupedCommand)
@command_options(SweepOptions)
def sweep_command(**values: Any) -> int:
    """Train random valid specs on both sides and check that no false alarm is raised."""
    require_frameworks("sweep")
    options = _options(SweepOptions, values)
    if options.harmless:
        from parity.twins.sweep.harmless import run_harmless

        text, match = run_harmless(options)
        print(text)
        return MATCH if match else MISMATCH
    from parity.twins.sweep.random_sweep import sweep
    from parity.twins.sweep.results import sweep_text, sweep_values

    swept = sweep(options)
    text, found = sweep_text(swept), sweep_values(swept) | _measured()
    save_report("sweep", text, found, options.out, options.json)
    print(text)
    return MISMATCH if swept.alarms else MATCH


@click.command("scale", cls=GroupedCommand)
@command_options(ScaleOptions)
@spec_options()
def scale_command(**values: Any) -> int:
    """Predict the time of a step on many ranks, from a measured step and the links."""
    options = take_options(ScaleOptions, values)
    if options.compute is None:
        require_frameworks("scale")
    from parity.twins.scale.scaling import scale

    spec = spec_from(options.network, options.preset, values)
    print(scale(spec, options, _command()))
    return MATCH


@click.command("losses", cls=GroupedCommand)
@click.argument("runs", nargs=-1, required=True, type=PathType())
@click.option(
    "--out",
    type=PathType(),
    default=Path("out/losses.png"),
    show_default=True,
    help="file to write the picture to (.png, .svg or .pdf)",
)
@click.option("--debug", is_flag=True, help="print the traceback of an error")
def losses_command(runs: tuple[Path, ...], out: Path, debug: bool) -> int:
    """Draw the loss curves of several trainings into one picture.

    RUNS are folders that train.py wrote (its --out).
    """
    for remark in plot_losses(runs, out):
        print(escaped(remark))
    print(f"picture: {escaped(str(out))}")
    return 0


def _benchmarks(network: str, of_strategies: bool = False) -> tuple[str, ...]:
    """Return the presets that are timed by default, or those for a table of strategies."""
    if network not in NETWORKS:
        return ("bench",)  # any preset will do: `spec_from` refuses the network first
    found = NETWORKS[network]
    return (of_strategies and found.strategy_benchmarks) or found.benchmarks


def _measured() -> dict[str, Any]:
    """Return the date, machine and command of a measurement."""
    return {**measured_here(), "command": _command()}


def _command() -> str:
    return command_text(sys.argv)


COMMANDS = {
    each.name: each
    for each in (
        run_command,
        bench_command,
        converge_command,
        profile_command,
        faults_command,
        sweep_command,
        scale_command,
        losses_command,
    )
}
