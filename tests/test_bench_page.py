"""The benchmark's page, seen in a real browser: it shows what bench.json holds."""

import pytest
from browser import cells

from parity.twins.bench.report import bench_html

LAYOUTS = {"paddle": ["1 x 1", "2 x 1"], "tensorflow": ["1 x 1", "2 x 1"], "pytorch": ["2 x 1"]}
SPEEDS = {"paddle": [100.0, 190.0], "tensorflow": [110.0, 200.0], "pytorch": [150.0]}


def values():
    """Return what a benchmark of made-up speeds would say."""
    cases, speeds = {}, {}
    for name, layouts in LAYOUTS.items():
        for layout, speed in zip(layouts, SPEEDS[name], strict=True):
            label = f"{name}-{layout.replace(' ', '')}"
            replicas, threads = map(int, layout.split(" x "))
            cases[label] = {
                "name": name,
                "title": name,
                "layout": layout,
                "settings": "",
                "replicas": replicas,
                "threads": threads,
            }
            speeds[label] = {"median": speed, "spread": [speed * 0.9, speed * 1.2]}
    ratios = {"pytorch-2x1": 1.27, "best": 1.27}
    return {
        "cases": cases,
        "throughput": speeds,
        "against": {"paddle-2x1": ratios},
        "strategies": [],
        "history": {"commit": "b" * 40, "since": None},
        "peers_left_out": {},
        "processor": "A & B",
        "checked_steps": 2,
        "noise": "noise: equal matrix products take up to 3% longer",
        "cores": 2,
        "rounds": 3,
        "steps": 40,
        "threads": 1,
        "scaling": {"paddle": {"1": 1.0, "2": 1.9}, "tensorflow": {"1": 1.0, "2": 1.82}},
        "share_of_limit": dict.fromkeys(cases, 0.62),
        "share_of_step_products": dict.fromkeys(cases, 0.77),
        "waiting_share": dict.fromkeys(cases, 0.001),
        "seconds_to_first_step": dict.fromkeys(cases, 4.25),
        "peak_memory": {label: [1e9] * case["replicas"] for label, case in cases.items()},
        "product_limit": 2.05e11,
        "step_product_rate": 1.65e11,
        "product_rates": {"numpy": 1e11, "paddle": 2.05e11, "tensorflow": 1.9e11},
        "versions": {"paddle": "2.6.2"},
        "machine": "Linux <x86>",
        "command": "python -m parity bench --peers",
    }


@pytest.fixture
def shown(tmp_path, window):
    """Return a function that opens the page of some values."""

    def show(made):
        page = tmp_path / "bench.html"
        page.write_text(bench_html(made, "language-model: hidden 200"))
        window.look()
        window.open(page)
        return page

    return show


@pytest.mark.browser
def test_bars_are_the_speeds(shown, window):
    page = shown(values())
    assert window.complaints == []
    assert {*window.requests} <= {page.as_uri(), "data:,"}
    found = window.evaluate(
        "[...document.querySelectorAll('#speeds path.area')].map((bar) => [bar.textContent,"
        " bar.getAttribute('fill'), Math.round(bar.getBBox().height), bar.getBBox().width])"
    )
    flat = [speed for speeds in SPEEDS.values() for speed in speeds]
    told = [f"{s:,.0f}, {0.9 * s:,.0f} to {1.2 * s:,.0f}" for s in flat]
    assert [bar[0] for bar in found] == told
    assert [bar[1] for bar in found] == ["#2f7fe0"] * 2 + ["#d9660a"] * 2 + ["#c8372d"]
    unit = 1000 / (1.1 * 1.2 * max(flat))  # the axis has room above the highest whisker
    for (_, _, height, width), speed in zip(found, flat, strict=True):
        assert height == pytest.approx(unit * speed, abs=2)
        assert width > 50
    table = cells(window, "#speeds details")
    assert table[1] == ["paddle", "2 x 1", "190.0", "171.0", "228.0"]
    assert len(table) == 5


@pytest.mark.browser
def test_tables_say_what_was_measured(shown, window):
    made = values()
    made["cases"]["paddle-2x1"] |= {"title": "paddle layers", "settings": "stages=2"}
    row = {"label": "paddle-2x1", "gain": 1.9, "of_best": None, "to": {"pytorch": 1.27}}
    made |= {"strategies": [row], "peers_left_out": {"keras": "it has no layers"}}
    then = {"median": 300.0, "spread": [290.0, 310.0]}
    fell = {"paddle-2x1": {"then": then, "now": made["throughput"]["paddle-2x1"]}}
    since = {"since": "a" * 40, "date": "2026-11-01T10:00:00", "compared": 4}
    made["history"] |= since | {"fell": fell, "machine": 0.98}
    shown(made)
    measured = cells(window, "#measured")
    speed = ["2 x 1", "200", "180 to 240", "1.82"]
    assert measured[3] == ["tensorflow", *speed, "62%", "77%", "0.1%", "4.2", "2,000"]
    assert measured[4][4] == "-"  # no gain of a peer
    assert cells(window, "#against") == [["paddle layers 2 x 1", "1.27", "1.27"]]
    expected = ["paddle layers", "stages=2", "2 x 1", "190", "171 to 228", "1.90", "-", "1.27"]
    assert cells(window, "#strategies") == [[*expected, "2,000"]]
    headers = window.evaluate("document.querySelector('#strategies thead').textContent")
    assert "to pytorch" in headers
    assert "to keras" not in headers  # it was not timed
    said = window.evaluate("document.querySelector('main').textContent")
    for each in (
        "2 steps of each side's configurations match the oracle; speeds are measured, "
        "not judged",
        "at 205 GFLOP/s",
        "Linux <x86>",
        "keras is not timed: it has no layers.",
        "paddle-2x1 fell by 37% since aaaaaaaaaaaa (2026-11-01)",
    ):
        assert each in said
