"""The worst distances that a sweep has seen, and the table and values that report them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.report.table import Table
from parity.trace.rungs import RUNGS
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE

# What was compared: the two sides; a side and the oracle that trains on its own; a side and the
# oracle that starts each step from the side's weights.
BETWEEN, FREE, STEP = "between the sides", "from the oracle", "from one step of the oracle"


@dataclass
class Worst:
    """The worst distance of one rung over many runs.

    Attributes:
      absolute, relative: the greatest of each, as in `Distance`.
      where: the place of `relative`: number of the run, step, tensor and index.
      used: the largest share of the bound that was used; None if no bound applies.
      used_in: number of the run that used it.
    """

    absolute: float = 0.0
    relative: float = 0.0
    where: dict[str, Any] | None = None
    used: float | None = None
    used_in: int | None = None

    def add(self, number: int, distance: Mapping[str, Any]) -> None:
        """Take a run's distance into account, given as by `Distance.to_json`."""
        self.absolute = max(self.absolute, distance["worst_absolute"])
        if self.where is None or distance["worst_relative"] > self.relative:
            self.relative = distance["worst_relative"]
            if distance["where"]:
                self.where = {"run": number, **distance["where"]}
        used = distance["used"]
        if used is not None and (self.used is None or used > self.used):
            self.used, self.used_in = used, number


@dataclass
class Sweep:
    """The results of a sweep.

    Attributes:
      seed: the seed that its runs were drawn from.
      chosen_from: the strategies that its runs were drawn from, as --strategy takes them.
      results: number of a run -> its result: the values of the run and its "kernels"; "how" it
        ended, "match" or not; "story", empty for a match; "worst", kind of comparison -> rung
        -> distance; "covered", case -> how often the run met it.
    """

    seed: int
    chosen_from: list[str] = field(default_factory=list)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Return the results of the runs that did not match; all of these are false alarms."""
        return [
            self.results[n] for n in sorted(self.results) if self.results[n]["how"] != "match"
        ]

    def worst(self) -> dict[str, dict[str, dict[str, Worst]]]:
        """Return dtype -> rung -> kind of comparison -> the worst distance of all runs."""
        found: dict[str, dict[str, dict[str, Worst]]] = {}
        for number, result in sorted(self.results.items()):
            of_dtype = found.setdefault(result["spec"]["training"]["dtype"], {})
            for kind, rungs in result["worst"].items():
                for rung, distance in rungs.items():
                    kinds = of_dtype.setdefault(rung, {})
                    kinds.setdefault(kind, Worst()).add(number, distance)
        return found

    def covered(self) -> dict[str, tuple[int, int]]:
        """Return case -> the number of runs that met it, and of those that could have."""
        found: dict[str, tuple[int, int]] = {}
        for result in self.results.values():
            for name, count in result.get("covered", {}).items():
                met, could = found.get(name, (0, 0))
                found[name] = met + bool(count), could + 1
        return found

    def strategies(self) -> dict[str, int]:
        """Return "framework=strategy" -> the number of runs that trained with it."""
        return dict(
            Counter(
                f"{framework}={drawn['name']}"
                for result in self.results.values()
                for framework, drawn in sorted(result["strategies"].items())
            )
        )


def sweep_values(sweep: Sweep) -> dict[str, Any]:
    """Return the results of a sweep as plain values."""
    return {
        "seed": sweep.seed,
        "runs": len(sweep.results),
        "strategies": sweep.strategies(),
        "false_alarms": len(sweep.alarms),
        "alarms": sweep.alarms,
        "covered": {
            name: {"runs": met, "of": could} for name, (met, could) in sweep.covered().items()
        },
        "amplified": [n for n, result in sweep.results.items() if result.get("amplified")],
        "worst": {
            dtype: {
                rung: {kind: vars(worst) for kind, worst in kinds.items()}
                for rung, kinds in rungs.items()
            }
            for dtype, rungs in sweep.worst().items()
        },
    }


def sweep_text(sweep: Sweep) -> str:
    """Return a table of the worst distances, and the story of every false alarm."""
    headers = [
        "precision",
        "rung",
        "distance",
        "worst over largest",
        "where",
        "allowed",
        "most used of it",
        "run",
    ]
    order = list(dict.fromkeys(RUNGS.values()))
    rows = [
        _row(dtype, rung, kind, worst)
        for dtype, rungs in sorted(sweep.worst().items(), reverse=True)
        for rung in sorted(rungs, key=order.index)
        for kind, worst in rungs[rung].items()
    ]
    lines = [Table(headers, rows, keys=3).text(), ""]
    cases = [(name, f"{met} of {could}") for name, (met, could) in sweep.covered().items()]
    lines += [Table(["case", "met in runs"], cases).text(), ""]
    runs = sorted(sweep.strategies().items())
    lines += [Table(["strategy", "runs"], runs).text(), ""]
    strategy = f"--strategy={','.join(sweep.chosen_from)} " if sweep.chosen_from else ""
    for alarm in sweep.alarms:
        number, seed = alarm["number"], sweep.seed
        lines += [
            f"run {number}: {alarm['how']}",
            *(f"    {line}" for line in alarm["story"].splitlines()),
            f"    again: python -m parity sweep --seed={seed} --only={number} {strategy}"
            f"--kernels={alarm['kernels']} --keep",
            "",
        ]
    lines.append(
        f"{len(sweep.results)} runs of seed {sweep.seed}: {len(sweep.alarms)} false alarms"
    )
    return "\n".join(lines)


def _row(dtype: str, rung: str, kind: str, worst: Worst) -> list[Any]:
    where = None
    if worst.where and worst.relative:
        where = "{tensor}, run {run}, step {step}".format_map(worst.where)
    return [
        dtype,
        rung,
        kind,
        f"{worst.relative:.2g}",
        where,
        _allowed(dtype, rung, kind),
        None if worst.used is None else f"{worst.used:.3f}",
        worst.used_in if worst.used else None,
    ]


def _allowed(dtype: str, rung: str, kind: str) -> str:
    if kind == STEP and rung in ONE_STEP_TIMES:
        return f"{ONE_STEP_TIMES[rung]:g} x rounding"
    return str(TABLE[dtype, rung]) if dtype == "float64" or rung not in ONE_STEP_TIMES else "-"
