"""Tables of whole trainings: what they reach, and whether they reach the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from docs.tables.measurement import Measurement, count, joined, markdown_table


def converge_table(measured: Sequence[Measurement]) -> str:
    """Return what whole trainings from several seeds reached, and the tests of equivalence."""
    (one,) = measured
    values, rows, tests = one.values, [], []
    for name, each in values["quantities"].items():
        form = "{:+.2%}" if each["relative"] else "{:+.3f}"
        margin = f"{each['margin']:.0%}" if each["relative"] else f"{each['margin']:g}"
        for side, found in each["sides"].items():
            numbers = (found["mean"], found["deviation"], min(found["values"]))
            numbers = (*numbers, max(found["values"]))
            rows.append([name, side, *map(each["form"].format, numbers)])
        for pair in each["pairs"]:
            interval = f"{form.format(pair['low'])} to {form.format(pair['high'])}"
            tests.append(
                [
                    name,
                    f"{pair['a']} – {pair['b']}",
                    form.format(pair["difference"]),
                    interval,
                    f"± {margin}",
                    f"{pair['p']:.1e}" if pair["p"] < 0.001 else f"{pair['p']:.3f}",
                    _judgement(pair),
                ]
            )
    seeds = len(next(iter(values["runs"].values())))
    training = values["spec"]["training"]
    said = (
        f"{values['network']} `{values['preset']}`, {count(seeds, 'seed')}, "
        f"{count(training['epochs'], 'epoch')}, {training['dtype']}: "
        f"{values['verdict'] or 'no verdict'}."
    )
    return joined(
        one.provenance("python -m parity converge"),
        said,
        markdown_table(["result", "side", "mean", "deviation", "lowest", "highest"], rows),
        markdown_table(
            ["difference of", "sides", "mean", "90 % interval", "margin", "p", ""], tests
        ),
    )


def _judgement(pair: Mapping[str, Any]) -> str:
    if not pair.get("same_training", True):
        return "another training"
    return "equivalent" if pair["shown"] else "not shown"


def trainings_table(measured: Sequence[Measurement]) -> str:
    """Return the perplexities of one training of each side, relative to the first side's."""
    first, rows = measured[0].values["test_perplexity"], []
    for each in measured:
        values, test = each.values, each.values["test_perplexity"]
        rows.append(
            [
                values["framework"],
                f"{min(values['valid_perplexity']):.2f}",
                f"{test:.2f}",
                "–" if each is measured[0] else f"{test / first - 1:+.2%}",
            ]
        )
    headers = ["side", "best validation perplexity", "test perplexity", "to the first side"]
    command = "train.py --preset zaremba-small --data FOLDER --replicas 1 --threads 1"
    return joined(measured[-1].provenance(command), markdown_table(headers, rows))
