"""`parity scale`: its command line, its tables and its page, from a step that is given."""

import json

import pytest
from browser import cells, data
from conftest import assert_one_line

from parity.cli.command_line import main
from parity.cli.main import parity
from parity.twins.scale.checking import ALLOWED
from parity.twins.scale.page import scale_html
from parity.twins.scale.terminal import check_markdown, check_text, scale_text
from parity.twins.scale.workload import STRATEGIES

GIVEN = (
    *("--preset=tiny", "--sides=paddle", "--compute=0.01/0.002", "--software=1e-3/1e-5/1e-9"),
    *("--links=lan=1gbit/0.1ms", "--most=64"),
)


@pytest.fixture
def scaled(tmp_path, capsys):
    """Return a function that runs the command; it returns what it printed and scale.json."""

    def run(*words):
        assert main(parity, ["scale", *GIVEN, f"--out={tmp_path}", *words]) == 0
        return capsys.readouterr().out, json.loads((tmp_path / "scale.json").read_text())

    return run


def curve(values, scaling, strategy):
    return values["predictions"]["paddle"]["lan"][scaling][strategy]


def test_one_rank_is_the_step_that_was_given(scaled):
    _, values = scaled()
    step = 0.01 + 20 * 0.002
    for scaling in ("weak", "strong"):
        one = {name: each[0] for name, each in curve(values, scaling, "ring").items()}
        assert one == pytest.approx(
            {"seconds": step, "overlapped": step, "sent": 0.0, "speed_up": 1.0}
        )


def test_each_strategy_and_number_of_ranks_is_predicted(scaled):
    _, values = scaled()
    found = values["predictions"]["paddle"]["lan"]
    assert found["ranks"] == [1, 2, 4, 8, 16, 32, 64]
    for scaling in ("weak", "strong"):
        assert set(found[scaling]) == set(STRATEGIES)
        for each in found[scaling].values():
            assert {len(column) for column in each.values()} == {7}
    # 20 rows are none for some of 32 ranks; two layers are two stages at most
    assert curve(values, "strong", "ring")["seconds"][5:] == [None, None]
    assert curve(values, "weak", "layers")["seconds"][2:] == [None] * 5
    assert curve(values, "weak", "hybrid")["seconds"][0] is None


def test_the_step_of_two_ranks_is_computed_by_hand(scaled):
    _, values = scaled("--links=lan=8mbit/100ms", "--software=0/0/0")
    size = values["gradients"]["dense"]
    # gloo: two segments, asked for at once, in each half of the ring
    expected = 0.01 + 20 * 0.002 + 2 * (2 * 0.1 + size / 2 / 1e6)
    assert curve(values, "weak", "ring")["seconds"][1] == pytest.approx(expected)
    assert curve(values, "weak", "ring")["sent"][1] == pytest.approx(size)
    both = curve(values, "weak", "ring")
    hidden = both["seconds"][1] - both["overlapped"][1]
    assert hidden == pytest.approx(2 / 3 * (0.01 + 20 * 0.002))


def test_where_ring_and_servers_cross_is_named(scaled):
    printed, values = scaled("--links=lan=10gbit/1ms", "--software=0/0/0", "--servers=2")
    ranges = values["predictions"]["paddle"]["lan"]["fastest"]["weak"]["server on each rank"]
    assert [each["first"] for each in ranges[1:]] == [each["last"] + 1 for each in ranges[:-1]]
    assert (ranges[0]["first"], ranges[-1]["last"]) == (2, 64)
    assert ranges[-1]["strategy"] == "server on each rank"
    line = f"server on each rank from {ranges[-1]['first']} to 64"
    assert line in printed


def test_the_text_names_what_was_given_and_where_it_ends(scaled, tmp_path):
    printed, values = scaled()
    for words in ("per message", "1 ns", "gradients 0.62 MB", "overlap", "stragglers"):
        assert words in printed
    assert (tmp_path / "scale.txt").read_text() in printed + "\n"
    engine = values["sides"]["paddle"]["engine"]
    assert (engine["per_collective"], engine["per_message"]) == (1e-3, 1e-5)
    assert values["sides"]["paddle"]["collectives"] == 1


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        (
            {"per_byte": [-1e-9, 5e-10, 1e-9]},
            "Paddle: noise hides the time per byte: -1 ns to 1 ns in 3 repetitions; the",
        ),
        ({"per_collective": [-1e-3, 2e-3]}, "the time per collective: -1 ms to 2 ms in 2"),
        (
            {"per_byte": [], "per_message": []},
            "Paddle: what the software takes was not measured",
        ),
    ],
)
def test_a_cost_that_was_not_found_is_named(scaled, hidden, words):
    _, values = scaled()
    assert "noise" not in scale_text(values)
    values["sides"]["paddle"]["hidden"] = hidden
    printed = scale_text(values)
    assert printed.count(words) == 1
    cell = "not measured " if [] in hidden.values() else "at most 1"
    assert cell in printed
    assert words in scale_html(values)


@pytest.mark.parametrize(
    "words",
    [
        ["--links=lan"],
        ["--links=lan=1gbit"],
        ["--links=lan=fast/1ms"],
        ["--links=lan=0gbit/1ms"],
        ["--links=lan=1gbit/-1ms"],
        ["--links=a=1gbit/1ms,a=2gbit/1ms"],
        ["--local=1gbit"],
        ["--compute=1"],
        ["--compute=0/0"],
        ["--compute=x/1"],
        ["--software=1/2"],
        ["--software=nan/0/0"],
        ["--sides=torch"],
        ["--most=0"],
        ["--measure=nowhere"],
        ["--measure=host:99999"],
        ["--measure=127.0.0.1:1"],
        ["--listen=0"],
        ["--preset=none"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(words, tmp_path, capsys):
    status = main(parity, ["scale", *GIVEN, f"--out={tmp_path}", *words])
    assert "allowed" in assert_one_line(status, capsys.readouterr().err)


def test_software_without_a_step_is_refused(capsys):
    assert main(parity, ["scale", "--software=0/0/0"]) == 2
    assert "--software is given without --compute" in capsys.readouterr().err


def test_the_help_explains_links(capsys):
    assert main(parity, ["scale", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "NAME=BANDWIDTH/LATENCY" in printed
    assert "--check" in printed


def checked(error: float) -> dict:
    """Return what a comparison with a real training would hold."""
    engine = {"per_collective": 0.0, "per_byte": 2e-9, "delays_before": 0, "segment": None}
    trial = {
        "side": "paddle",
        "ranks": 2,
        "rate": 1e8,
        "delay": 0.01,
        "measured": 0.5,
        "predicted": 0.5 * (1 + error),
        "error": error,
        "sent": 9.1e6,
        "predicted_sent": 9e6,
    }
    alone = trial | {"ranks": 1, "rate": None, "delay": None, "error": 0.0, "sent": 0.0}
    base = {"side": "paddle", "ranks": 2, "compute": 0.1, "engine": engine, "hidden": False}
    return {
        "bases": [base],
        "trials": [alone, trial],
        "steps": 12,
        "worst": abs(error),
        "allowed": ALLOWED,
        "date": "2026-01-02T03:04:05+00:00",
        "processor": "P",
        "cores": 2,
        "command": "python -m parity scale --check",
    }


def test_a_comparison_names_each_training_and_the_worst():
    text = check_text(checked(-0.13))
    for words in ("100 Mbit/s, 10 ms", "-13%", "9.10 MB", "2 ns", "at most 13% from"):
        assert words in text
    values = checked(-0.13)
    page = check_markdown(values)
    assert "at most 2 ns" not in page
    values["bases"][0]["hidden"] = True
    assert "| at most 2 ns " in check_markdown(values)
    assert page.startswith("2026-01-02, P, 2 cores; `python -m parity scale --check`:")
    assert "| Paddle | 2       | 100 Mbit/s, 10 ms |" in page


@pytest.mark.browser
def test_the_page_shows_the_numbers(scaled, tmp_path, window):
    _, values = scaled()
    window.look()
    window.open(tmp_path / "scale.html")
    assert window.complaints == []
    drawn = {trace["name"]: trace for trace in data(window, "seconds-0-0-weak")}
    assert list(drawn) == list(STRATEGIES)
    ring = curve(values, "weak", "ring")["seconds"]
    assert drawn["ring"]["y"] == pytest.approx([1e3 * seconds for seconds in ring])
    assert cells(window, "#measured")[0][:3] == ["Paddle", "10 ms", "2 ms"]
