"""Tables of what the harness finds: planted faults, and random runs without any."""

from collections.abc import Sequence

from docs.tables.measurement import Measurement, count, joined, markdown_table, share
from parity.trace.rungs import RUNGS


def faults_table(measured: Sequence[Measurement]) -> str:
    """Return how many faults of no strategy were found, by precision and kernels."""
    (one,) = measured
    rows = []
    findings = [each for each in one.values["findings"] if not each.get("strategy")]
    for dtype, kernels in sorted({(e["dtype"], e["kernels"]) for e in findings}, reverse=True):
        mine = [e for e in findings if (e["dtype"], e["kernels"]) == (dtype, kernels)]
        found = [each for each in mine if each["found"]]
        compared = [
            e for e in found if e["found_by"] == "mismatch" or e["rung"] == "evaluation"
        ]
        right = sum(each["right_place"] for each in found)
        able = [each for each in compared if each.get("confirmable", True)]
        confirmed = [e for e in compared if e["fault"] in e.get("confirmed_faults", [])]
        wrongly = sum(bool(e.get("confirmed")) for e in compared if e not in confirmed)
        rows.append(
            [
                *(dtype, kernels, len(mine), len(found), right),
                f"{len(confirmed)} of {len(able)}",
                wrongly,
            ]
        )
    faults = len({each["fault"] for each in findings})
    headers = [
        "precision", "kernels", "planted", "found", "at the right tensor",
        "cause confirmed", "another confirmed",
    ]  # fmt: skip
    once = "--once" in one.values.get("command", "")
    where = "one of the frameworks" if once else "every framework"
    said = f"{count(faults, 'fault')}, each planted in {where} that can have it."
    return joined(one.provenance("make hunt"), said, markdown_table(headers, rows))


def sweep_table(measured: Sequence[Measurement]) -> str:
    """Return how much of what one step allows was used, by rung, and the false alarms."""
    (one,) = measured
    values, rows = one.values, []
    for rung in dict.fromkeys(RUNGS.values()):
        used = {
            dtype: rungs[rung]["share"]
            for dtype, rungs in values["used"].items()
            if rung in rungs
        }
        if any(share for share in used.values()):
            rows.append([rung, *(share(used.get(d)) for d in ("float64", "float32"))])
    headers = ["rung", "largest share of what one step is allowed, float64", "float32"]
    said = (
        f"{count(values['runs'], 'run')} of seed {values['seed']}, "
        f"{count(values['false_alarms'], 'false alarm')}."
    )
    met = {name: each for name, each in values["covered"].items() if each["runs"]}
    never = [name for name in values["covered"] if name not in met]
    rarest = min(met, key=lambda name: met[name]["runs"])
    said += (
        f" They met {len(met)} of {count(len(values['covered']), 'case')}, the rarest, "
        f"{rarest}, in {count(met[rarest]['runs'], 'run')}"
        + (f"; never {', '.join(never)}." if never else ".")
    )
    command = f"python -m parity sweep --count {values['runs']}"
    return joined(one.provenance(command), said, markdown_table(headers, rows))
