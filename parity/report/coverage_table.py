"""The table of what a run covered, and the words that name what it did not."""

from typing import Any

from parity.base.text import counted
from parity.compare.coverage import Fact


def coverage_table(values: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return the rows and headers of the table of coverage, a row per case.

    There is one column of counts, or one per precision where they differ: training may stop
    early in one of them. A case that cannot occur with these settings is left out.
    """
    runs = {
        run["dtype"]: {each["name"]: Fact(**each) for each in run["coverage"]}
        for run in values["runs"]
        if "coverage" in run
    }
    names = dict.fromkeys(
        name for facts in runs.values() for name, fact in facts.items() if _can_occur(fact)
    )
    rows = [
        [name, *(facts[name].amount if name in facts else "-" for facts in runs.values())]
        for name in names
    ]
    if all(len(set(row[1:])) == 1 for row in rows):
        return [row[:2] for row in rows], ["case", "covered"]
    return rows, ["case", *(f"covered,\n{dtype}" for dtype in runs)]


def case_meanings(values: dict[str, Any]) -> dict[str, str]:
    """Return what each case of the table is: name -> a sentence."""
    facts = [Fact(**each) for run in values["runs"] for each in run.get("coverage", ())]
    return {fact.name: fact.meaning for fact in facts if _can_occur(fact)}


def not_covered_line(values: dict[str, Any]) -> str:
    """Return a line that names the cases not covered; empty if there are none."""
    names = values["not_covered"]
    return f"not covered by this run: {', '.join(names)}" if names else ""


def covered_line(values: dict[str, Any]) -> str:
    """Return how many of the cases were covered; empty if there is no coverage."""
    cases = len(case_meanings(values))
    covered = cases - len(values["not_covered"])
    return f"{covered} of {cases} cases covered" if cases else ""


def verdict_line(values: dict[str, Any]) -> str:
    """Return the verdict, and for a match what it does not speak for."""
    lacking = [
        f"{counted(len(names), 'tensor')} of {label} alone"
        for label, names in values.get("only", {}).items()
    ]
    if values["verdict"] != "match":
        because = lacking if not values["first_mismatch"] else []
        return f"verdict: {values['verdict']}{': ' if because else ''}{' and '.join(because)}"
    count = len(values["not_covered"])
    sides = {
        known["side"]
        for run in values["runs"]
        for known in run.get("known_differences", [])
        if known["first"] is not None
    }
    notes = [*lacking, *([f"{count} case{'s' * (count > 1)} not covered"] if count else [])]
    notes += [f"a known difference of {side}" for side in sorted(sides)]
    notes += [
        f"{label} {where}"
        for run in values["runs"]
        for label, where in run.get("cut", {}).items()
    ]
    return f"verdict: match{', with ' if notes else ''}{' and '.join(notes)}"


def _can_occur(fact: Fact) -> bool:
    return fact.applies or fact.count > 0
