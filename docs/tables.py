"""Write the tables of figures in the documentation from what the commands measured.

    python docs/tables.py            write every table whose measurements are there
    python docs/tables.py --check    only say which tables are out of date; status 1 if any is

A table stands between two comments, of which the first names its kind and its measurements:

    <!-- table: bench out/bench/bench.json -->
    <!-- /table -->

Each table says when, on which processor and by which command its figures were measured. A
table whose measurements are not there stays as it is.
"""

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_BLOCK = re.compile(
    r"(?P<start><!-- table: (?P<kind>[\w-]+)(?P<files>(?: \S+)*) -->\n)"
    r"(?P<body>.*?)(?P<end><!-- /table -->)",
    re.DOTALL,
)
_RUNG_ORDER = (
    "batch",
    "forward",
    "loss",
    "gradient",
    "optimizer",
    "weight",
    "replicas",
    "decode",
)
_ONE_STEP = "one step"  # in the name of that kind of comparison in sweep.json


@dataclass(frozen=True)
class Measurement:
    """One file that a command wrote.

    Attributes:
      path: the file.
      values: its content.
    """

    path: Path
    values: Mapping[str, Any]

    def provenance(self, command: str) -> str:
        """Return when, where and by what it was measured.

        Args:
          command: named if the file does not name its own.
        """
        written = datetime.fromtimestamp(self.path.stat().st_mtime, timezone.utc)
        date = self.values.get("date", f"{written:%Y-%m-%d}")
        processor = self.values.get("processor") or this_processor()
        cores = self.values.get("cores") or os.cpu_count()
        command = self.values.get("command") or command
        return f"*Measured {date[:10]} on {processor}, {cores} cores: `{command}`*"


def this_processor() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a bar inside a cell is escaped."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def bench_table(measured: Sequence[Measurement]) -> str:
    """Return the speed of every side, number of replicas and number of threads."""
    (one,) = measured
    values, rows = one.values, []
    for label, speed in values["throughput"].items():
        case = values["cases"][label]
        gain = values["scaling"].get(case["title"], {}).get(str(case["replicas"]))
        if case["threads"] != values["threads"]:
            gain = None
        rows.append(
            [
                case["title"],
                f"{case['replicas']} × {case['threads']}",
                f"{speed['median']:,.0f}",
                "{:,.0f} to {:,.0f}".format(*speed["spread"]),
                _ratio(gain),
                f"{values['share_of_limit'][label]:.0%}",
                f"{values['waiting_share'][label]:.1%}",
                f"{values['seconds_to_first_step'][label]:.1f}",
                f"{sum(values['peak_memory'][label]) / 1e6:,.0f}",
            ]
        )
    headers = [
        "side", "replicas × threads", "tokens/s, median", "spread", "gain", "of the limit",
        "waiting for data", "seconds to the first step", "peak memory, MB",
    ]  # fmt: skip
    said = (
        f"{_sizes(values)}; {_count(values['rounds'], 'round')} of {values['steps']} steps. "
        f"The limit is matrix products at {values['product_limit'] / 1e9:,.0f} GFLOP/s."
    )
    return _joined(
        one.provenance("python -m parity bench"), said, markdown_table(headers, rows)
    )


def peers_table(measured: Sequence[Measurement]) -> str:
    """Return how many times as fast as each peer every side is."""
    (one,) = measured
    cases, against = one.values["cases"], one.values["against"]

    def named(label: str) -> str:
        if label not in cases:
            return "best peer"
        return "{title} {replicas} × {threads}".format(**cases[label])

    peers = list(next(iter(against.values())))
    rows = [
        [named(side), *(_ratio(ratios[p]) for p in peers)] for side, ratios in against.items()
    ]
    headers = ["times as fast as", *map(named, peers)]
    return _joined(
        one.provenance("python -m parity bench --peers"), markdown_table(headers, rows)
    )


def strategies_table(measured: Sequence[Measurement]) -> str:
    """Return what `bench --strategies` says of every strategy, a table for each shape."""
    peers = {"pytorch": "PyTorch", "keras": "Keras"}
    headers = ["strategy", "settings", "replicas × threads", "tokens/s, median", "spread"]
    headers += ["gain", "of the best", *(f"to {title}" for title in peers.values())]
    parts = [measured[0].provenance("python -m parity bench --strategies all")]
    for one in measured:
        values, rows = one.values, []
        for row in values["strategies"]:
            case, speed = values["cases"][row["label"]], values["throughput"][row["label"]]
            rows.append(
                [
                    case["title"],
                    case["settings"] or "–",
                    case["layout"].replace("x", "×"),
                    f"{speed['median']:,.0f}",
                    "{:,.0f} to {:,.0f}".format(*speed["spread"]),
                    _ratio(row["gain"]),
                    _ratio(row["of_best"]),
                    *(_ratio(row["to"].get(peer)) for peer in peers),
                    f"{sum(values['peak_memory'][row['label']]) / 1e6:,.0f}",
                ]
            )
        said = (
            f"{_sizes(values)}; {_count(values['rounds'], 'round')} of {values['steps']} steps"
        )
        parts += [f"{said}.", markdown_table([*headers, "peak memory, MB"], rows)]
    return _joined(*parts)


def sizes_table(measured: Sequence[Measurement]) -> str:
    """Return a row of ratios to the peers for each of several sizes."""
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
        best = {
            name: max(
                (label for label in against if cases[label]["name"] == name),
                key=lambda label: against[label]["best"],
            )
            for name in frameworks
        }
        rows.append(
            [
                _sizes(values),
                *(_ratio(against[full[name]][full["pytorch"]]) for name in frameworks),
                *(
                    "{} ({replicas} × {threads})".format(
                        _ratio(against[best[name]]["best"]), **cases[best[name]]
                    )
                    for name in frameworks
                ),
                *(f"{values['share_of_limit'][full[name]]:.0%}" for name in frameworks),
                values["rounds"],
            ]
        )
    headers = [
        "network",
        *(f"{name}, a replica a core, to PyTorch's the same" for name in frameworks),
        *(f"{name}'s best layout to the best peer" for name in frameworks),
        *(f"{name}, of the limit" for name in frameworks),
        "rounds",
    ]
    said = [one.provenance("python -m parity bench --peers") for one in measured]
    return _joined(*said, markdown_table(headers, rows))


def kernels_table(measured: Sequence[Measurement]) -> str:
    """Return the speed of plain and of fast kernels side by side, and their ratio."""
    speeds: dict[tuple[str, str, str], dict[str, float]] = {}
    for one in measured:
        values = one.values
        for label, speed in values["throughput"].items():
            case = values["cases"][label]
            side = " ".join(filter(None, (case["name"], case["strategy"])))
            key = _sizes(values), side, f"{case['replicas']} × {case['threads']}"
            speeds.setdefault(key, {})[case["kernels"]] = speed["median"]
    rows = []
    for key, found in speeds.items():
        if len(found) == 2:
            plain, fast = found["plain"], found["fast"]
            rows.append([*key, f"{plain:,.0f}", f"{fast:,.0f}", _ratio(fast / plain)])
    headers = [
        "network", "side", "replicas × threads", "plain, tokens/s", "fast, tokens/s",
        "times as fast",
    ]  # fmt: skip
    said = [one.provenance("python -m parity bench --kernels plain,fast") for one in measured]
    return _joined(*said, markdown_table(headers, rows))


def faults_table(measured: Sequence[Measurement]) -> str:
    """Return how many planted faults were found, by precision and kernels."""
    (one,) = measured
    rows = []
    findings = one.values["findings"]
    for dtype, kernels in sorted({(e["dtype"], e["kernels"]) for e in findings}, reverse=True):
        mine = [e for e in findings if (e["dtype"], e["kernels"]) == (dtype, kernels)]
        found = [each for each in mine if each["found"]]
        compared = [each for each in found if each["found_by"] == "mismatch"]
        right = sum(each["right_place"] for each in found)
        able = [each for each in compared if each.get("confirmable", True)]
        confirmed = [e for e in compared if e["fault"] in e.get("confirmed_faults", [])]
        wrongly = sum(bool(e.get("confirmed")) for e in compared if e not in confirmed)
        others = [each for each in compared if each not in confirmed]
        named = sum(each["fault"] in each["likely"][:3] for each in others)
        rows.append(
            [
                *(dtype, kernels, len(mine), len(found), right),
                f"{len(confirmed)} of {len(able)}",
                wrongly,
                f"{named} of {len(others)}",
            ]
        )
    faults = len({each["fault"] for each in findings})
    headers = [
        "precision", "kernels", "planted", "found", "at the right tensor",
        "cause confirmed", "another confirmed", "else among the first three likely causes",
    ]  # fmt: skip
    said = f"{_count(faults, 'fault')}, each planted in every framework that can have it."
    return _joined(one.provenance("make hunt"), said, markdown_table(headers, rows))


def strategy_faults_table(measured: Sequence[Measurement]) -> str:
    """Return how many faults of each strategy were found, apart from the default ones."""
    (one,) = measured
    findings = [each for each in one.values["findings"] if each["strategy"]]
    rows = []
    for side, strategy in sorted({(e["side"], e["strategy"]) for e in findings}):
        mine = [e for e in findings if (e["side"], e["strategy"]) == (side, strategy)]
        found = [each for each in mine if each["found"]]
        able = [e for e in found if e["found_by"] == "mismatch" and e["confirmable"]]
        rows.append(
            [
                f"{side} `{strategy}`",
                len({each["fault"] for each in mine}),
                *(len(mine), len(found), sum(each["right_place"] for each in found)),
                "{} of {}".format(
                    sum(each["fault"] in each["confirmed_faults"] for each in able), len(able)
                ),
            ]
        )
    headers = [
        "strategy", "faults", "planted", "found", "at the right tensor, the strategy named",
        "cause confirmed",
    ]  # fmt: skip
    dtypes = sorted({each["dtype"] for each in findings}, reverse=True)
    kernels = sorted({each["kernels"] for each in findings})
    said = (
        f"{_count(len({each['fault'] for each in findings}), 'fault')}, planted in "
        f"{' and '.join(dtypes)}, with {' and '.join(kernels)} kernels."
    )
    command = "python -m parity faults --strategy"
    return _joined(one.provenance(command), said, markdown_table(headers, rows))


def sweep_table(measured: Sequence[Measurement]) -> str:
    """Return how much of what one step allows was used, by rung, and the false alarms."""
    (one,) = measured
    values, rows = one.values, []
    for rung in _RUNG_ORDER:
        used = {
            dtype: _largest_use(rungs.get(rung, {})) for dtype, rungs in values["worst"].items()
        }
        if any(share for share in used.values()):
            rows.append([rung, *(_share(used.get(d)) for d in ("float64", "float32"))])
    headers = ["rung", "largest share of what one step is allowed, float64", "float32"]
    said = (
        f"{_count(values['runs'], 'run')} of seed {values['seed']}, "
        f"{_count(values['false_alarms'], 'false alarm')}."
    )
    met = {name: each for name, each in values["covered"].items() if each["runs"]}
    never = [name for name in values["covered"] if name not in met]
    rarest = min(met, key=lambda name: met[name]["runs"])
    said += (
        f" They met {len(met)} of {_count(len(values['covered']), 'case')}, the rarest, "
        f"{rarest}, in {_count(met[rarest]['runs'], 'run')}"
        + (f"; never {', '.join(never)}." if never else ".")
    )
    command = f"python -m parity sweep --count {values['runs']}"
    return _joined(one.provenance(command), said, markdown_table(headers, rows))


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
                    "equivalent" if pair["shown"] else "not shown",
                ]
            )
    seeds = len(next(iter(values["runs"].values())))
    training = values["spec"]["training"]
    said = (
        f"{values['network']} `{values['preset']}`, {_count(seeds, 'seed')}, "
        f"{_count(training['epochs'], 'epoch')}, {training['dtype']}: {values['verdict']}."
    )
    return _joined(
        one.provenance("python -m parity converge"),
        said,
        markdown_table(["result", "side", "mean", "deviation", "lowest", "highest"], rows),
        markdown_table(
            ["difference of", "sides", "mean", "90 % interval", "margin", "p", ""], tests
        ),
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
    return _joined(measured[-1].provenance(command), markdown_table(headers, rows))


def differs_table(measured: Sequence[Measurement] = (), root: Path = ROOT) -> str:
    """Return every line of the two sides that has to differ, with its reason."""
    rows = []
    for folder in ("paddle_impl", "tf_impl"):
        for path in sorted((root / folder).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines):
                before, tag, reason = line.partition("# differs: ")
                if not tag:
                    continue
                if not before.strip():  # a comment of its own may go on below
                    for more in lines[number + 1 :]:
                        if not more.strip().startswith("# "):
                            break
                        reason += " " + more.strip()[2:]
                rows.append([f"`{path.relative_to(root).as_posix()}`", reason])
    return markdown_table(["file", "why"], rows)


KINDS: dict[str, Callable[[Sequence[Measurement]], str]] = {
    "bench": bench_table,
    "peers": peers_table,
    "strategies": strategies_table,
    "sizes": sizes_table,
    "kernels": kernels_table,
    "faults": faults_table,
    "strategy-faults": strategy_faults_table,
    "sweep": sweep_table,
    "converge": converge_table,
    "trainings": trainings_table,
    "differs": differs_table,
}


def filled(text: str, root: Path = ROOT) -> tuple[str, list[str]]:
    """Return a page with its tables written, and what could not be, as messages.

    Args:
      text: of the page.
      root: what the measurements' names are relative to.

    Raises:
      ValueError: for a kind of table that there is not.
    """
    missing: list[str] = []

    def write(block: re.Match[str]) -> str:
        kind, names = block["kind"], block["files"].split()
        if kind not in KINDS:
            raise ValueError(f"table of kind {kind!r}; allowed: {', '.join(KINDS)}")
        absent = [name for name in names if not (root / name).is_file()]
        if absent:
            missing.append(f"table {kind}: kept, no {', '.join(absent)}")
            return block[0]
        measured = [Measurement(root / n, json.loads((root / n).read_text())) for n in names]
        return f"{block['start']}{KINDS[kind](measured)}\n{block['end']}"

    return _BLOCK.sub(write, text), missing


def pages(root: Path = ROOT) -> list[Path]:
    """Return all pages of the documentation, the READMEs included."""
    return [*sorted(root.glob("README*.md")), *sorted((root / "docs").rglob("*.md"))]


def main() -> int:
    """Write or check all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing, report stale tables"
    )
    check = parser.parse_args().check
    stale = False
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after, missing = filled(before)
        name = page.relative_to(ROOT)
        for message in missing:
            print(f"{name}: {message}")
        if after != before:
            stale = True
            print(f"{name}: {'out of date' if check else 'written'}")
            if not check:
                page.write_text(after, encoding="utf-8")
    return int(check and stale)


def _joined(*parts: str) -> str:
    return "\n\n".join(parts)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _largest_use(kinds: Mapping[str, Mapping[str, Any]]) -> float | None:
    shares = [worst["used"] for kind, worst in kinds.items() if _ONE_STEP in kind]
    return max((share for share in shares if share is not None), default=None)


def _sizes(values: Mapping[str, Any]) -> str:
    model, text, training = (values["spec"][part] for part in ("model", "text", "training"))
    words = [values["network"]]
    if values.get("preset"):
        words[0] += f" `{values['preset']}`"
    words += [f"hidden {model['hidden_size']}", f"batch {training['batch_size']}"]
    if "time" in text:
        words.append(f"time {text['time']}")
    return ", ".join([*words, training["dtype"]])


if __name__ == "__main__":
    sys.exit(main())
