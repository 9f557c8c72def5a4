"""`parity scale`: its command line, its tables and its page, from a step that is given."""

import json

import pytest
from conftest import assert_one_line

from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.twins.scale.workload import STRATEGIES

GIVEN = (
    *("--preset=tiny", "--sides=paddle", "--compute=0.01/0.002"),
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


def test_each_strategy_and_number_of_ranks_is_predicted(scaled):
    _, values = scaled()
    found = values["predictions"]["paddle"]["lan"]
    assert found["ranks"] == [1, 2, 4, 8, 16, 32, 64]
    for scaling in ("weak", "strong"):
        assert set(found[scaling]) == set(STRATEGIES)
        for each in found[scaling].values():
            assert {len(column) for column in each.values()} == {7}
    # 20 rows are none for some of 32 ranks
    assert curve(values, "strong", "ring")["seconds"][5:] == [None, None]


def test_the_step_of_two_ranks_is_computed_by_hand(scaled):
    _, values = scaled("--links=lan=8mbit/100ms")
    size = values["gradients"]["dense"]
    # gloo: two segments, asked for at once, in each half of the ring
    expected = 0.01 + 20 * 0.002 + 2 * (2 * 0.1 + size / 2 / 1e6)
    assert curve(values, "weak", "ring")["seconds"][1] == pytest.approx(expected)
    assert curve(values, "weak", "ring")["sent"][1] == pytest.approx(size)
    both = curve(values, "weak", "ring")
    hidden = both["seconds"][1] - both["overlapped"][1]
    assert hidden == pytest.approx(2 / 3 * (0.01 + 20 * 0.002))


def test_the_text_names_what_was_given_and_where_it_ends(scaled, tmp_path):
    printed, _ = scaled()
    for words in ("per message", "not measured", "gradients 0.62 MB", "overlap", "stragglers"):
        assert words in printed
    assert (tmp_path / "scale.txt").read_text() in printed + "\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--links=lan"],
        ["--links=lan=fast/1ms"],
        ["--links=lan=1gbit/-1ms"],
        ["--links=a=1gbit/1ms,a=2gbit/1ms"],
        ["--local=1gbit"],
        ["--compute=0/0"],
        ["--compute=x/1"],
        ["--sides=torch"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(words, tmp_path, capsys):
    status = main(parity, ["scale", *GIVEN, f"--out={tmp_path}", *words])
    assert "allowed" in assert_one_line(status, capsys.readouterr().err)
