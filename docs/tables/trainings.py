"""Tables of whole trainings: what they reach, and whether they reach the same."""

from collections.abc import Sequence

from docs.tables.measurement import (
    Measurement,
    count,
    joined,
    markdown_table,
    table_in_markdown,
)
from parity.twins.converge.report import results_table, tests_table


def converge_table(measured: Sequence[Measurement]) -> str:
    """Return what whole trainings from several seeds reached, and the tests of equivalence."""
    (one,) = measured
    values = one.values
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
        table_in_markdown(results_table(values)),
        table_in_markdown(tests_table(values)),
    )


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
