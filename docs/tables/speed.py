"""Tables of speed, of what `parity bench` measured."""

from collections.abc import Sequence

from docs.tables.measurement import (
    Measurement,
    count,
    joined,
    markdown_table,
    ratio,
    sizes,
    table_in_markdown,
)
from parity.twins.bench.tables import speed_table, strategy_table


def bench_table(measured: Sequence[Measurement]) -> str:
    """Return the speed of every side, number of replicas and number of threads."""
    (one,) = measured
    values = one.values
    said = (
        f"{sizes(values)}; {count(values['rounds'], 'round')} of {values['steps']} steps. "
        f"The limit is matrix products at {values['product_limit'] / 1e9:,.0f} GFLOP/s; a "
        "step's own products, each as fast as any library takes it on all cores at once, reach "
        f"{values['step_product_rate'] / 1e9:,.0f}."
    )
    table = table_in_markdown(speed_table(values))
    return joined(one.provenance("python -m parity bench"), said, table)


def strategies_table(measured: Sequence[Measurement]) -> str:
    """Return what `bench --strategies` says of every strategy, a table for each shape."""
    parts = [measured[0].provenance("python -m parity bench --strategies all")]
    for one in measured:
        values = one.values
        said = f"{sizes(values)}; {count(values['rounds'], 'round')} of {values['steps']} steps"
        parts += [f"{said}.", table_in_markdown(strategy_table(values))]
    return joined(*parts)


def sizes_table(measured: Sequence[Measurement]) -> str:
    """Return a row of ratios to the peers for each of several sizes.

    Shares of the limit and memory are those of a replica a core.
    """
    rows = []
    for one in measured:
        values = one.values
        cases, against, cores = values["cases"], values["against"], values["cores"]
        frameworks = list(dict.fromkeys(cases[label]["name"] for label in against))
        full = {  # a replica a core
            case["name"]: label
            for label, case in cases.items()
            if (case["replicas"], case["threads"]) == (cores, 1)
        }
        memory = {label: sum(each) for label, each in values["peak_memory"].items()}
        best = {
            name: max(
                (label for label in against if cases[label]["name"] == name),
                key=lambda label: against[label]["best"],
            )
            for name in frameworks
        }
        rows.append(
            [
                sizes(values),
                *(ratio(against[full[name]][full["pytorch"]]) for name in frameworks),
                *(
                    "{} ({replicas} × {threads})".format(
                        ratio(against[best[name]]["best"]), **cases[best[name]]
                    )
                    for name in frameworks
                ),
                *(f"{values['share_of_limit'][full[name]]:.0%}" for name in frameworks),
                *(ratio(memory[full[name]] / memory[full["pytorch"]]) for name in frameworks),
                values["rounds"],
            ]
        )
    headers = [
        "network",
        *(f"{name}, a replica a core, to PyTorch's the same" for name in frameworks),
        *(f"{name}'s best layout to the best peer" for name in frameworks),
        *(f"{name}, of the limit" for name in frameworks),
        *(f"{name}, peak memory to PyTorch's" for name in frameworks),
        "rounds",
    ]
    said = [one.provenance("python -m parity bench --peers") for one in measured]
    return joined(*said, markdown_table(headers, rows))


def kernels_table(measured: Sequence[Measurement]) -> str:
    """Return the speed of plain and of fast kernels side by side, and their ratio."""
    speeds: dict[tuple[str, str, str], dict[str, float]] = {}
    for one in measured:
        values = one.values
        for label, speed in values["throughput"].items():
            case = values["cases"][label]
            side = " ".join(filter(None, (case["name"], case["strategy"])))
            key = sizes(values), side, f"{case['replicas']} × {case['threads']}"
            speeds.setdefault(key, {})[case["kernels"]] = speed["median"]
    rows = []
    for key, found in speeds.items():
        if len(found) == 2:
            plain, fast = found["plain"], found["fast"]
            rows.append([*key, f"{plain:,.0f}", f"{fast:,.0f}", ratio(fast / plain)])
    headers = [
        "network", "side", "replicas × threads", "plain, tokens/s", "fast, tokens/s",
        "times as fast",
    ]  # fmt: skip
    said = [one.provenance("python -m parity bench --kernels plain,fast") for one in measured]
    return joined(*said, markdown_table(headers, rows))
