"""`python -m parity profile`: where the time of a step goes, on each side."""

import json
import shutil
from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from parity.base.files import make_folder, write_whole
from parity.base.progress import Counter
from parity.bench.zipf_text import generated
from parity.cli.options import ProfileOptions
from parity.launch.processes import SideProcess
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.spec import Spec
from parity.training.timeline import PHASES, TABLE, TRACE, joined_traces


def profile(spec: Spec, options: ProfileOptions, command: str) -> dict[str, Any]:
    """Profile one side after the other, each alone on the machine.

    `options.out` gets trace.json, a Chrome trace of both, profile.json, and profile.txt.

    Args:
      command: what the user typed, for the record.

    Returns:
      Plain values: `sides` (framework -> what `profile_training` found).

    Raises:
      UsageError: for input that cannot be used, as the sides found it.
      NumericFailure: for a NaN or infinity.
    """
    make_folder(options.out)
    data = options.data
    if data is None:
        spec, data = generated(spec, options.steps, options.out)
    found, traces = {}, []
    with Counter("profiling", len(FRAMEWORKS), "side") as progress:
        for framework in FRAMEWORKS:
            folder = options.out / framework
            with SideProcess(
                framework,
                spec,
                options.out / "logs" / f"{framework}.log",
                preset=options.preset,
                data=data,
                cache=options.cache,
                replicas=options.replicas,
                threads=options.threads,
                device=options.device,
                steps=options.steps,
                profile=folder,
                debug=options.debug,
            ) as side:
                side.wait()
            found[framework] = json.loads((folder / TABLE).read_text())
            traces.append(json.loads((folder / TRACE).read_text()))
            shutil.rmtree(folder)
            progress.update(framework)
    values = {
        "network": spec.network,
        "preset": options.preset,
        "sides": found,
        "command": command,
    }
    write_whole(options.out / "trace.json", json.dumps(joined_traces(traces)).encode())
    write_whole(options.out / "profile.json", json.dumps(values, indent=2).encode() + b"\n")
    text = profile_text(values, options.operations)
    write_whole(options.out / "profile.txt", text.encode() + b"\n")
    return values


def profile_text(values: Mapping[str, Any], operations: int) -> str:
    """Return tables for a terminal.

    Args:
      values: of `profile`.
      operations: how many of each side are shown.
    """
    sides = values["sides"]
    first = next(iter(sides.values()))
    lines = [
        f"{first['replicas']} x {first['threads']} (replicas x threads), "
        f"{first['steps']} profiled steps of each side; milliseconds a step",
        "",
        _phases(sides),
        "",
        "in operations: of all replicas, over how many run at once; idle: what the step takes "
        "beyond them",
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
        headers = [f"{name}: operation", "phase", "calls", "ms", "of the step"]
        lines += ["", tabulate(rows, headers, tablefmt="simple", disable_numparse=True)]
    return "\n".join(lines)


def _phases(sides: Mapping[str, Any]) -> str:
    rows = [
        [phase, *(_share(side["phases"][phase], side) for side in sides.values())]
        for phase in PHASES
    ]
    rows += [
        ["idle", *(_share(side["idle"], side) for side in sides.values())],
        ["a step", *(f"{side['milliseconds_per_step']:.1f}" for side in sides.values())],
        [
            "unprofiled",
            *(f"{side['unprofiled_milliseconds_per_step']:.1f}" for side in sides.values()),
        ],
    ]
    return tabulate(rows, ["phase", *sides], tablefmt="simple", disable_numparse=True)


def _share(milliseconds: float, side: Mapping[str, Any]) -> str:
    return f"{milliseconds:.1f} ({milliseconds / side['milliseconds_per_step']:.0%})"
