"""The results of a sweep: the share of its bounds that was used, and the false alarms."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from parity.report.table import Table
from parity.trace.rungs import RUNGS


@dataclass
class Sweep:
    """The results of a sweep.

    Attributes:
      seed: the seed that its runs were drawn from.
      chosen_from: the strategies that its runs were drawn from, as --strategy takes them.
      results: number of a run -> its result: the values of the run and its "kernels"; "how" it
        ended, "match" or not; "story", empty for a match; "used", rung -> the largest share of
        its bound by which a side differs from the oracle, after one step from the side's own
        weights; "covered", case -> how often the run met it.
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

    def used(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return dtype -> rung -> the largest `share` of all runs, and the `run` of it."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for number, result in sorted(self.results.items()):
            of_dtype = found.setdefault(result["spec"]["training"]["dtype"], {})
            for rung, share in result["used"].items():
                if rung not in of_dtype or share > of_dtype[rung]["share"]:
                    of_dtype[rung] = {"share": share, "run": number}
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
        "used": sweep.used(),
    }


def sweep_text(sweep: Sweep) -> str:
    """Return a table of the shares that were used, and the story of every false alarm."""
    order = list(dict.fromkeys(RUNGS.values()))
    rows = [
        (dtype, rung, f"{rungs[rung]['share']:.1%}", rungs[rung]["run"])
        for dtype, rungs in sorted(sweep.used().items(), reverse=True)
        for rung in sorted(rungs, key=order.index)
    ]
    headers = ["precision", "rung", "most of what one step is allowed", "run"]
    lines = [Table(headers, rows, keys=2).text(), ""]
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
