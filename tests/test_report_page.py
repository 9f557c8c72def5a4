"""The page: what it shows is what report.json holds, seen in a real browser."""

import copy
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from browser import cells, lines
from oracle_side import (
    compare_sides,
    header,
    recorded_steps,
    small_pairs_spec,
    small_spec,
    write_trace,
)

from parity.align.mapping import write
from parity.align.proposal import propose
from parity.base.files import write_whole
from parity.compare.step_series import History
from parity.compare.tensors import ONE_STEP, Distance, Place
from parity.report.assertion import compared
from parity.report.graph import inside
from parity.report.heat_map import AFTER, COLOURS, WRONG
from parity.report.mismatch import first_lines, mismatch_story
from parity.report.save import save_report
from parity.report.terminal import notes
from parity.report.verdict_page import report_html
from parity.report.verdict_tables import rung_table
from parity.trace.ranks import open_side
from parity.twins.compare.decoded_answers import Tie
from parity.twins.compare.run_tables import training_table
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome, RunVerdict
from parity.twins.launch.processes import ROOT
from parity.twins.trace.contents import tensor_names
from parity.twins.trace.side import TrainedSide

TENSOR = "gradient/lstm_0/bias"
COUNTS = (1, 2)
FRAMEWORKS = ("paddle", "tensorflow")
STEPS = 6
MOST_BYTES = 600_000  # of 1000 steps and two precisions; that of a pair is half of it


@dataclass
class Report:
    """Values, and the page made of them."""

    values: dict
    page: Path


def climbed(spec, steps, change=None):
    """Return the verdict of both frameworks' sides at each replica count."""
    sources = {"gradient/lstm_0": "tf_impl/layers.py:9 (lstm)", "forward": "elsewhere.py:1 (f)"}
    runs = {f"{f}-{n}": recorded_steps(spec, steps, n) for n in COUNTS for f in FRAMEWORKS}
    for step in range(steps):
        # as if two engines had rounded the forward pass in another way
        tensors = runs["tensorflow-1"][step]
        tensors["forward/logits"] = tensors["forward/logits"] * (1 + 1.5e-16 * step)
        if change is not None:
            change(step, {label: run[step] for label, run in runs.items()})
    return compare_sides(spec, runs, sources=sources)


def trainings():
    """Return what four timed sides would say of themselves."""
    return {
        f"{framework}-{count}": {
            "framework": framework,
            "replicas": count,
            "dtype": "float32",
            "steps": 750,
            "test_perplexity": 12.0,
            "best_perplexity": {"test": 7.5},
            "tokens_per_second": {"median": speed, "low": speed * 0.9, "high": speed * 1.2},
            "waiting_share": 0.01,
        }
        for framework, fewest in zip(FRAMEWORKS, (1e5, 8e4), strict=True)
        for count, speed in zip(COUNTS, (fewest, fewest * 1.4), strict=True)
    }


def values_of(spec, verdicts):
    outcome = Outcome(spec, verdicts[0].sides, {}, verdicts, trainings())
    values = report_values(outcome, "small", 'python -m parity run --data "<i>&amp;</i>"')
    return json.loads(json.dumps(values, allow_nan=False))  # as report.json has them


def fault(step, recorded):
    if step == 3:
        wrong = recorded["tensorflow-1"][TENSOR].copy()
        wrong[2] += 1e-3
        recorded["tensorflow-1"][TENSOR] = wrong


def match():
    verdicts = []
    for dtype in ("float64", "float32"):
        verdict = climbed(small_spec(dtype=dtype), STEPS)
        verdicts.append(verdict)
    return values_of(small_spec(), verdicts)


def mismatch():
    verdict = climbed(small_spec(), STEPS, fault)
    return values_of(small_spec(), [verdict])


def pairs():
    spec = small_pairs_spec(attention="bahdanau", bidirectional=True)
    verdict = climbed(spec, 3)
    place = Place(2, "decode/beam_tokens", (0, 0, 1))
    verdict.pairs["paddle-1", ONE_STEP] = {"decode": Distance(1e-13, 2e-14, place, 0.25)}
    ties = (Tie("paddle-1", place, (-1.5, -math.inf), 1e-17),)
    verdict = replace(verdict, ties=ties)
    return values_of(spec, [verdict])


MADE = {"match": match, "mismatch": mismatch, "pairs": pairs}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Return a function that makes each of the reports once, by name."""
    folder, kept = tmp_path_factory.mktemp("pages"), {}

    def report(name):
        if name not in kept:
            values = MADE[name]()
            assert values["verdict"] == ("mismatch" if name == "mismatch" else "match")
            page = folder / f"{name}.html"
            write_whole(page, report_html(values).encode())
            kept[name] = Report(values, page)
        return kept[name]

    return report


@pytest.fixture(scope="module", params=MADE)
def name(request):
    """Return the name of each report in turn; tests of the same one run together."""
    return request.param


@pytest.fixture
def shown(name, reports, window):
    """Open each report on a wide window in light colours, unless it is."""
    report = reports(name)
    window.look()
    if window.shown != report.page:
        window.open(report.page)
    return report


def table_of(window, plot):
    return cells(window, f"#{plot} details")


def as_texts(*columns):
    return [
        ["-" if each is None else str(each) for each in row]
        for row in zip(*columns, strict=True)
    ]


def plots(values):
    kinds = ("heat", "loss", "difference")
    return [f"{kind}-{dtype}" for dtype in values["history"] for kind in kinds]


@pytest.mark.browser
def test_opens_offline_and_without_a_complaint(shown, window):
    assert window.complaints == []
    assert window.requests[0] == shown.page.as_uri()
    assert {address.split(":")[0] for address in window.requests[1:]} == {"data"}


@pytest.mark.browser
def test_verdict_and_tables_are_those_of_the_values(shown, window):
    values = shown.values
    assert window.evaluate("document.querySelector('main h1').textContent") == values["verdict"]
    assert (
        window.evaluate("document.getElementById('verdict').getBoundingClientRect().top") < 60
    )
    assert cells(window, "#rungs") == as_texts(*zip(*rung_table(values).rows, strict=True))
    trained = training_table(values).rows
    assert cells(window, "#trainings") == as_texts(*zip(*trained, strict=True))
    said = window.evaluate("document.querySelector('main').textContent")
    for note in notes(values):
        assert note in said
    command = window.evaluate("document.getElementById('command').textContent")
    assert command == values["command"]
    for name, version in values["versions"].items():
        assert f"{name} {version}" in said


def test_every_column_is_explained(reports):
    values = [copy.deepcopy(reports(name).values) for name in MADE]
    for key, other in (("strategy", "another"), ("kernels", "plain"), ("processes", 2)):
        changed = copy.deepcopy(values[0])
        changed["sides"]["paddle-2"][key] = other
        values.append(changed)
    tables = [rung_table(each) for each in values]
    assert len({name for table in tables for name in table.headers}) == 17
    full = {"bleu": {"score": 20.0}, "exact_answers": 0.5}
    trained = {label: summary | full for label, summary in trainings().items()}
    tables.append(training_table({"trainings": trained}))
    for table in tables:
        explained = [name for names in table.meanings for name in names.split(", ")]
        assert sorted(explained) == sorted(table.headers)


COLOURS_OF = """
(async () => {
  const rows = {};
  for (const kind of document.querySelectorAll(`#${plot} .kind:has(ol)`)) {
    const image = kind.querySelector("img");
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    [...kind.querySelectorAll("[title]")].forEach((each, i) => {
      const { data } = context.getImageData(0, i, canvas.width, 1);
      rows[each.title] = Array.from({ length: canvas.width }, (_, j) =>
        [...data.slice(4 * j, 4 * j + 4)]);
    });
  }
  return rows;
})()
"""


def colours(window, plot):
    """Return tensor -> the colour of each step in a heat map, such as "#9a9a9a"; None: none."""
    found = window.evaluate(
        f"(() => {{ const plot = {plot!r}; return {COLOURS_OF.strip()}; }})()"
    )
    return {
        name: [f"#{bytes(rgba[:3]).hex()}" if rgba[3] else None for rgba in row]
        for name, row in found.items()
    }


def heights(values, low, high, log=False):
    """Return how high values are in a chart whose axis goes from low to high, 0 to 1000."""
    scale = math.log10 if log else float
    room = scale(high) - scale(low)
    return [1000 * (scale(value) - scale(low)) / room for value in values]


@pytest.mark.browser
def test_figures_and_their_tables_hold_the_numbers_of_the_values(shown, window):
    for dtype, history in shown.values["history"].items():
        steps, (a, b) = history["steps"], history["pair"]
        drawn = lines(window, f"loss-{dtype}")
        assert drawn.keys() == history["loss"].keys()
        losses = [loss for each in history["loss"].values() for loss in each]
        room = 0.05 * (max(losses) - min(losses))
        for name, points in drawn.items():
            right = heights(history["loss"][name], min(losses) - room, max(losses) + room)
            assert [y for _, y in points] == pytest.approx(right, abs=1)
            across = [1000 * (step - steps[0]) / (steps[-1] - steps[0]) for step in steps]
            assert [x for x, _ in points] == pytest.approx(across, abs=1)
        assert table_of(window, f"loss-{dtype}") == as_texts(steps, *history["loss"].values())

        *band, line = lines(window, f"difference-{dtype}").values()
        # in float32 the oracle does not train by itself
        columns = [history["from_oracle"][side] for side in (a, b) if dtype == "float64"]
        assert bool(history["from_oracle"]) == bool(columns)
        shared = [list(map(max, *columns))] if columns else []
        high = 2 * max(*history["difference"], *(each for row in shared for each in row), 10)
        drawn = zip([line, *band], [history["difference"], *shared], strict=True)
        for points, given in drawn:
            right = heights([max(each, 0.1) for each in given], 0.1, high, log=True)
            assert [y for _, y in points] == pytest.approx(right, abs=1)
        texts = as_texts(steps, history["difference"], *columns)
        assert table_of(window, f"difference-{dtype}") == texts

        relative, used = history["relative"], history["used"]
        seen = colours(window, f"heat-{dtype}")
        assert seen.keys() == used.keys()
        for name, row in used.items():
            assert all(share is not None for share in row)
            for share, colour in zip(row, seen[name], strict=True):
                right = COLOURS[2 + min(int(5 * share), 4)] if share else COLOURS[1]
                assert colour == right if share <= 1 else colour in COLOURS[7:]
        found = {row[0]: row[1:] for row in table_of(window, f"heat-{dtype}")}
        assert list(found) == list(relative) == list(used)
        for name, told in found.items():
            for row, worst, step in ((used[name], *told[:2]), (relative[name], *told[2:])):
                assert (worst, step) == (str(max(row)), str(steps[row.index(max(row))]))


@pytest.mark.browser
def test_what_a_step_lacks_is_a_hole(reports, window, tmp_path):
    values = copy.deepcopy(reports("match").values)
    history = values["history"]["float64"]
    history["relative"][TENSOR][2] = history["used"][TENSOR][2] = None
    history["loss"]["paddle-1"][2] = None
    page = tmp_path / "hole.html"
    page.write_text(report_html(values))
    window.look()
    window.open(page)
    row = colours(window, "heat-float64")[TENSOR]
    assert [step for step, colour in enumerate(row) if colour is None] == [2]
    path = window.evaluate(
        "document.querySelector('#loss-float64 g[data-name=paddle-1] path:nth-of-type(2)')"
        ".getAttribute('d')"
    )
    assert [part.count("L") for part in path[1:].split("M")] == [1, STEPS - 4]
    assert table_of(window, "loss-float64")[2][1:3].count("-") == 1


@pytest.mark.browser
def test_a_mismatch_names_its_tensor_first(reports, window):
    report = reports("mismatch")
    first = report.values["first_mismatch"]
    assert (first["tensor"], first["step"]) == (TENSOR, 3)
    for width in (1100, 360):
        window.look(width)
        window.open(report.page)
        named = "document.getElementById('tensor')"
        assert window.evaluate(f"{named}.textContent") == first["tensor"]
        assert window.evaluate(f"{named}.getBoundingClientRect().bottom") < 400
        assert window.evaluate("document.getElementById('step').textContent") == "3"
        head = window.evaluate("document.querySelector('header').textContent")
        who, where, after, why = (line.strip() for line in first_lines(first)[1:])
        assert who == f"who: {first['blame']}"
        place = "tf_impl/layers.py:9 (lstm)"
        assert where == f"where: in the backward pass of {place}, in tensorflow-1"
        assert after == "last right: gradient/lstm_1/input_kernel"
        assert why == "why: tensorflow-1 and the oracle differ in element 2 of 16 alone"
        assert all(line in head for line in (who, where, after, why))
        story = window.evaluate("document.querySelector('#mismatch pre').textContent")
        assert story == mismatch_story(first)
    # of the map, which comes before the other figures, the tensor alone is red
    rows = colours(window, "heat-float64")
    assert [name for name, row in rows.items() if COLOURS[WRONG] in row] == [TENSOR]
    assert any(COLOURS[AFTER] in row for row in rows.values())
    figures = window.evaluate("[...document.querySelectorAll('figure')].map((each) => each.id)")
    assert figures[:2] == ["network-float64", "heat-float64"]
    marked = window.evaluate("document.querySelector('#heat-float64 .marked').textContent")
    assert marked.strip() == f"► {TENSOR.removeprefix('gradient/')}"


@pytest.mark.browser
@pytest.mark.parametrize(
    ("page", "width", "dark"),
    [
        ("mismatch", 360, False),
        ("mismatch", 800, True),
        ("mismatch", 1600, False),
        ("pairs", 360, True),
    ],
)
def test_fits_narrow_and_wide_in_either_scheme(reports, window, page, width, dark):
    window.look(width, 700, "dark" if dark else "light")
    window.open(reports(page).page)
    assert window.complaints == []
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    assert window.evaluate(
        "[...document.querySelectorAll('figure svg, figure img')]"
        ".every((svg) => svg.getBoundingClientRect().right <= innerWidth)"
    )

    def brightness(expression):
        colour = window.evaluate(f"getComputedStyle({expression[0]}).{expression[1]}")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    tick = ("document.querySelector('#loss-float64 .across span')", "color")
    assert (brightness(("document.body", "backgroundColor")) < 60) is dark
    assert (brightness(("document.body", "color")) > 180) is dark
    assert (brightness(tick) > 150) is dark


@pytest.mark.browser
def test_the_parts_stand_in_the_order_in_which_they_are_asked_for(reports, window):
    window.look(1400)
    for name, parts in (
        ("match", ["verdict", "not-covered", "coverage", "rungs", "contents", "float64"]),
        ("mismatch", ["verdict", "mismatch", "contents", "float64", "coverage", "rungs"]),
    ):
        window.open(reports(name).page)
        places = window.evaluate(
            f"{json.dumps(parts)}.map((id) => [...document.querySelectorAll('[id]')]"
            ".indexOf(document.getElementById(id)))"
        )
        assert -1 not in places
        assert places == sorted(places)
        links = window.evaluate(
            "[...document.querySelectorAll('#contents a')].map((each) => each.hash.slice(1))"
        )
        assert {"float64", "loss-float64-title", "speeds", "environment"} <= set(links)
        for link in links:
            assert window.evaluate(f"document.getElementById({link!r}) !== null"), link


def test_the_page_says_when_how_long_and_on_what(reports):
    values = copy.deepcopy(reports("match").values)
    values |= {"date": "2031-02-03T04:05:06+00:00", "seconds": 3725.4}
    values |= {"processor": "Some Processor 3000", "cores": 1}
    page = report_html(values)
    for fact in ("2031-02-03 04:05 UTC", "took 1 h 02 min", "Some Processor 3000, 1 core"):
        assert f"<span>{fact}</span>" in page
    assert "took" not in report_html(values | {"seconds": None}).split("</header>")[0]


def test_one_step_is_no_steps_and_what_is_empty_is_left_out():
    spec = small_spec(dtype="float64")
    values = values_of(spec, [climbed(spec, 1)])
    values["trainings"] = {}
    page = report_html(values)
    assert not re.search(r"\b1 (steps|losses|differences|replicas|tensors|comparisons)\b", page)
    assert "Throughput" not in page
    for section in re.findall(r"<section.*?</section>", page.split("<main>")[1], re.S):
        assert len(re.sub(r"<h2.*?</h2>|<[^>]+>|\s", "", section, flags=re.S)) > 20, section


@pytest.mark.browser
def test_each_figure_is_reached_and_read_by_keys(reports, window):
    report = reports("match")
    window.look()
    window.open(report.page)
    reached = []
    for _ in range(400):
        window.press("Tab")
        reached.append(window.evaluate("document.activeElement.closest('figure')?.id"))
        if reached[-1] == plots(report.values)[-1]:
            break
    named = dict.fromkeys(each for each in reached if each in plots(report.values))
    assert [*named] == plots(report.values)
    loss = report.values["history"]["float32"]["loss"]
    told = "; ".join(f"{name} {loss[name][1]}" for name in loss)
    window.evaluate("document.querySelector('#loss-float32 .chart').focus()")
    said = "document.querySelector('#loss-float32 output').textContent"
    for key, step in (
        ("ArrowRight", 0),
        ("ArrowRight", 1),
        ("ArrowLeft", 0),
        ("ArrowRight", 1),
    ):
        window.press(key)
        assert window.evaluate(said).startswith(f"step {step}; ")
    assert window.evaluate(said) == f"step 1; {told}"


@pytest.mark.browser
def test_a_chart_tells_the_numbers_at_the_pointer(reports, window):
    report = reports("match")
    window.look()
    window.open(report.page)
    window.evaluate("document.getElementById('loss-float64').scrollIntoView()")
    box = window.evaluate(
        "(({ x, y, width, height }) => [x, y, width, height])"
        "(document.querySelector('#loss-float64 .plot').getBoundingClientRect())"
    )
    x, y = box[0] + 0.62 * box[2], box[1] + 0.5 * box[3]  # nearest to 3 of the steps 0 to 5
    window.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = window.evaluate("document.querySelector('#loss-float64 output').textContent")
    loss = report.values["history"]["float64"]["loss"]
    assert said == "; ".join(["step 3", *(f"{name} {each[3]}" for name, each in loss.items())])


@pytest.mark.browser
def test_prints_in_light_colours_on_the_width_of_a_sheet(reports, window):
    window.look(680, 900, "dark")
    window.open(reports("mismatch").page)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    window.call("Emulation.setEmulatedMedia", media="print", features=dark)
    tick = "document.querySelector('#loss-float64 .across span')"
    assert window.evaluate(
        f"getComputedStyle({tick}).color.match(/\\d+/g).every((c) => c < 130)"
    )
    assert window.evaluate(
        "[...document.querySelectorAll('figure *')]"
        ".every((each) => each.getBoundingClientRect().right <= 680)"
    )
    window.call("Emulation.setEmulatedMedia", media="")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return the report of an LSTM and its port, in which a gate's weights jump in step 2."""
    import torch

    import parity.torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(5, 8, batch_first=True)
            self.head = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    folder = tmp_path_factory.mktemp("pair")
    for name in ("a", "b"):
        torch.manual_seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with parity.torch.watch(folder / name, model, optimizer):
            for step in range(6):
                loss = (model(torch.randn(4, 7, 5)) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                if (name, step) == ("b", 2):
                    model.lstm.weight_hh_l0.data[8:16] += 0.5  # of the second gate
                optimizer.step()
    traces = [open_side(folder / name) for name in ("a", "b")]
    mapping = folder / "map.yaml"
    write(propose(traces), mapping)
    values = compared(traces, "compare", mapping=mapping, after_mismatch=1)
    page = folder / "page.html"
    page.write_text(report_html(json.loads(json.dumps(values))))
    return Report(values, page)


def shown_tensor(window):
    return window.evaluate(
        "[...document.querySelectorAll('.tensor')].filter((each) =>"
        " getComputedStyle(each).display !== 'none').map((each) =>"
        " each.querySelector('h4').firstChild.textContent)"
    )


@pytest.mark.torch
@pytest.mark.browser
def test_the_network_is_a_graph_whose_modules_lead_to_their_tensors(pair, window):
    window.look(400)
    window.open(pair.page)
    boxes = window.evaluate(
        "[...document.querySelectorAll('.graph li')].map((box) => [box.children[0].textContent,"
        " getComputedStyle(box).borderLeftColor, box.parentElement.closest('li') !== null])"
    )
    red, pale, grey = "rgb(224, 32, 32)", "rgb(240, 180, 168)", "rgb(154, 154, 154)"
    assert [(name, inner) for name, _, inner in boxes] == [
        ("lstm LSTM", False),
        ("head Sequential", False),
        ("0 LayerNorm", True),
        ("1 Linear", True),
        ("model Module", False),
    ]
    assert [colour for _, colour, _ in boxes] == [red, grey, grey, grey, grey]
    assert pale not in [colour for _, colour, _ in boxes]
    assert shown_tensor(window) == []
    window.evaluate("document.querySelector('.graph .chip').click()")
    assert shown_tensor(window) == ["weight/lstm.weight_hh_l0"]
    assert window.evaluate("document.documentElement.scrollWidth") <= 400
    window.evaluate("document.querySelector('.tensor:target .up').click()")
    assert shown_tensor(window) == []


@pytest.mark.torch
@pytest.mark.browser
def test_a_wrong_tensor_is_shown_over_the_steps_and_within_by_gate(pair, window):
    within = pair.values["runs"][0]["within"]["weight/lstm.weight_hh_l0"]
    assert [set(row) <= set("6789") for row in within["shares"]] == [
        8 <= row < 16 for row in range(32)
    ]
    window.look()
    window.open(pair.page)
    said = window.evaluate("document.getElementById('within-float32').textContent")
    assert "step 2: 64 of 256 elements beyond the bound" in said
    assert "downwards: 4 gates of 8; to the right: axis 1" in said
    line = "document.querySelector('#within-float32 path:last-child').getAttribute('d')"
    line = window.evaluate(line)
    assert line == "M0 1000L500 1000L1000 0"  # equal, equal, more than 1000 times the bound


@pytest.mark.torch
@pytest.mark.browser
def test_the_losses_of_all_steps_and_the_aligned_names_are_shown(pair, window):
    window.look()
    window.open(pair.page)
    rows = table_of(window, "loss-float32")
    assert [row[0] for row in rows] == list("012345")
    a, b = zip(*(map(float, row[1:]) for row in rows), strict=True)
    assert [x == y for x, y in zip(a, b, strict=True)] == [True] * 3 + [False] * 3
    assert pair.values["steps"] == 3  # those that were judged
    names = cells(window, "#aligned + details")
    assert ["lstm.weight_hh_l0", "lstm", "lstm.weight_hh_l0", "lstm.weight_hh_l0"] in names


def test_rows_and_time_steps_of_a_wrong_output_are_named():
    within = {"step": 1, "elements": [2, 24], "shape": [2, 3, 4], "shares": ["016", "006"]}
    for batch, axes in (
        ([2, 3], "downwards: row; to the right: time step"),
        ([2, 9], "downwards: row; to the right: axis 1"),
        ([9, 9], "downwards: axis 0; to the right: axis 1"),
    ):
        said = inside("forward/hidden", within, {}, [batch])["said"]
        assert said.startswith("step 1: 2 of 24 elements beyond the bound")
        assert said.endswith(f"; {axes}; the largest of: axis 2")


def test_long_runs_make_small_pages(tmp_path):
    """Of two precisions and the network of most tensors, in numbers that compress badly."""
    spec = small_pairs_spec(bidirectional=True, attention="bahdanau", input_feeding=True)
    names = [name for name in tensor_names(spec) if not name.startswith(("replicas", "decode"))]
    sides = {f"{f}-{n}": TrainedSide(f, replicas=n) for n in COUNTS for f in FRAMEWORKS}
    labels = list(sides)
    draw, verdicts = np.random.default_rng(0), []
    for dtype in ("float64", "float32"):
        place = Place(0, names[0], ())
        pairs = {("paddle-1", "tensorflow-1"): {"forward": Distance(0.0, 0.0, place, 0.0)}}
        history = History(dtype, labels[:2])
        verdict = RunVerdict(dtype, pairs, steps=1000, history=history, sides=sides)
        for step in range(verdict.steps):
            losses = {label: float(np.asarray(draw.random(), dtype)) for label in sides}
            distances = {name: Distance(0.0, float(draw.random()), place) for name in names}
            history.add(step, losses, distances, (), losses)
        verdicts.append(verdict)
    values = values_of(spec, verdicts)
    assert len(values["history"]["float32"]["steps"]) == 1000
    assert len(report_html(values).encode()) < MOST_BYTES


def test_nothing_in_a_page_is_fetched_and_texts_are_no_marks(reports):
    report = reports("match")
    page = report.page.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    links = re.findall(r"""\b(?:src|href)\s*=\s*["']?([^"'\s>]+)""", page.split("<main>")[0])
    assert links == ["data:,"]
    assert "<i>" in report.values["command"]
    assert "<i>" not in page


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Record two sides."""
    folder, spec = tmp_path_factory.mktemp("traces"), small_spec()
    steps = recorded_steps(spec, 4)
    for name, framework in zip("ab", FRAMEWORKS, strict=True):
        write_trace(folder / name, header(spec, framework), steps)
    return folder


def test_names_that_the_locale_cannot_read_are_no_obstacle(traces, tmp_path):
    folder = tmp_path / os.fsdecode("名前".encode() + b"\xff")
    folder.mkdir()
    for side in ("a", "b"):
        shutil.copytree(traces / side, folder / side)
    command = [sys.executable, "-m", "parity", "report", folder / "a", folder / "b"]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    page, values = folder / "頁.html", folder / "値.json"
    for words in (
        [*command, "--html", page],
        [*command[:3], "compare", *command[4:], "--json"],
    ):
        done = subprocess.run(
            [*words, values] if words[-1] == "--json" else words,
            cwd=ROOT,
            env=os.environ | locale,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
    assert "verdict" in page.read_text(encoding="utf-8")
    assert json.loads(values.read_text(encoding="utf-8"))["verdict"] == "match"


def test_a_run_writes_the_page_beside_the_other_reports(reports, tmp_path):
    values = reports("pairs").values
    save_report("report", "text", values, tmp_path, page=report_html(values))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.html",
        "report.json",
        "report.txt",
    ]
    assert (tmp_path / "report.html").read_bytes() == reports("pairs").page.read_bytes()
    assert json.loads((tmp_path / "report.json").read_text()) == values
