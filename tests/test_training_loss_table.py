"""The table of losses: written, continued, refused; and its picture."""

from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_line
from test_training_loop import train

from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.twins.training.image_files import save_figure
from parity.twins.training.loss_curves import losses_figure, short_names
from parity.twins.training.loss_table import Losses, read_losses

HEAD = "step,loss,tokens\n"


def steps_of(out):
    return [row[0] for row in read_losses(out / "losses.csv")]


def test_the_table_goes_with_the_checkpoints(tmp_path):
    """Written with each; steps after the last one are done again, and not there twice."""

    def fail(strategy, step):
        if step == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path, before=fail, checkpoint_every=3)
    assert steps_of(tmp_path) == list(range(6))
    newest = sorted((tmp_path / "checkpoints").glob("step-*"))[-1]
    assert newest.name == "step-00000006.safetensors"
    newest.unlink()  # as if its disk had failed: the table is then ahead
    train(tmp_path, resume="")
    assert steps_of(tmp_path) == list(range(8))
    train(tmp_path / "whole")
    assert read_losses(tmp_path / "losses.csv") == read_losses(
        tmp_path / "whole" / "losses.csv"
    )


DAMAGED = {
    "": "1: ''; allowed: step,loss,tokens",
    "step;loss;tokens\n": "1: 'step;loss;tokens'; allowed: step,loss,tokens",
    f"{HEAD}0,1.5,20\n1,1.25\n": "3: '1,1.25'; allowed: step, loss and tokens",
    f"{HEAD}0,1.5,20\n\n": "3: ''; allowed: step, loss and tokens",
    f"{HEAD}0,1.5,20\n1,one,20\n": "3: '1,one,20'; allowed: step, loss and tokens",
    f"{HEAD}0,1.5,20\n0,1.5,20\n": "3: step 0 after step 0; allowed: ascending",
    f"{HEAD}0,1.5,20\n1,1.25,2": "3: the line is cut off: it has no end",
}


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_table_is_refused_by_its_line(tmp_path, content):
    train(tmp_path, steps=4)
    path = tmp_path / "losses.csv"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        train(tmp_path, resume="")
    assert str(caught.value) == f"{path}:{DAMAGED[content]}"
    assert path.read_text() == content, "and it stays as it was"


def test_a_damaged_table_of_validations_is_refused_too(tmp_path):
    train(tmp_path, steps=4)
    path = tmp_path / "validations.csv"
    path.write_text("step,perplexity,bleu\n4,3.5,\n8,3.25\n")
    with pytest.raises(UsageError) as caught:
        train(tmp_path, resume="")
    told = "'8,3.25'; allowed: step, perplexity and bleu"
    assert str(caught.value) == f"{path}:3: {told}"


def test_what_is_no_text_is_refused(tmp_path):
    path = tmp_path / "losses.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a table: this is not text"):
        read_losses(path)


# the picture

ROWS = [(step, 3.0 / (step + 1), 20) for step in range(9)]
OTHER = [(step, loss + 1e-7 * step, 20) for step, loss, _ in ROWS[2:]]


def test_runs_are_drawn_over_each_other_and_apart(tmp_path):
    figure = losses_figure(["_paddle", "$\\frac$"], [ROWS, OTHER])
    above, below = figure.axes
    drawn = [line.get_xydata().tolist() for line in above.get_lines()]
    assert drawn == [[[step, loss] for step, loss, _ in rows] for rows in (ROWS, OTHER)]
    assert [text.get_text() for text in above.get_legend().get_texts()] == [
        "_paddle",
        "$\\frac$",
    ]
    (line,) = below.get_lines()
    steps, apart = line.get_xydata().T
    assert list(steps) == list(range(2, 9)), "the steps that both have"
    np.testing.assert_allclose(apart, 1e-7 * steps, atol=1e-14)
    save_figure(figure, tmp_path / "a.png")  # names are no formulas: this one would be an error


def write_tables(folder, **tables):
    """Write a table of losses for each run, as its training does."""
    for name, rows in tables.items():
        (folder / name).mkdir()
        table = Losses(folder / name / "losses.csv")
        for row in rows:
            table.add(*row)
        table.save()


def test_runs_without_a_common_step_are_drawn_without_a_difference(tmp_path, capsys):
    """Such as a run and the one that was resumed from it into another folder."""
    write_tables(tmp_path, a=ROWS[:4], b=ROWS[4:])
    words = ["losses", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "a.png"]
    assert main(parity, list(map(str, words))) == 0
    assert capsys.readouterr().out.splitlines() == [
        "b begins at step 4: its earlier steps are in another folder",
        "a and b have no step in common: no difference is drawn",
        f"picture: {tmp_path / 'a.png'}",
    ]
    (axes,) = losses_figure(["a", "b"], [ROWS[:4], ROWS[4:]]).axes
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7, 8],
    ]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["out/paddle", "out/tensorflow"], ["paddle", "tensorflow"]),
        (["x/out/run", "y/out/run"], ["x/out/run", "y/out/run"]),
        (["out/run/", "./out/run"], ["run", "run"]),
        (["/a", "/b/a"], ["/a", "b/a"]),
    ],
)
def test_names_in_the_legend_are_as_short_as_they_can_be(folders, names):
    assert short_names([Path(each) for each in folders]) == names


@pytest.fixture
def two_runs(tmp_path):
    write_tables(tmp_path, a=ROWS, b=OTHER, empty=[])
    return tmp_path


def test_a_loss_as_large_as_a_number_can_be_is_a_gap(tmp_path):
    losses_figure(["a"], [[(0, 1e308, 9), (1, -1e308, 9)]]).savefig(tmp_path / "a.png")


@pytest.mark.parametrize("runs", [["a"], ["a", "b"]])
def test_the_command_writes_the_picture(two_runs, capsys, runs):
    out = two_runs / "new" / "losses.png"
    status = main(parity, ["losses", *(str(two_runs / run) for run in runs), f"--out={out}"])
    assert status == 0
    *remarks, said = capsys.readouterr().out.splitlines()
    assert said == f"picture: {out}"
    late = ["b begins at step 2: its earlier steps are in another folder"]
    assert remarks == (late if "b" in runs else [])
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("runs", "out", "said"),
    [
        (
            ["a"],
            "new/l.txt",
            "{0}/new/l.txt: not the name of a picture; allowed endings: pdf, png, svg",
        ),
        (["a", "no"], "l.png", "{0}/no/losses.csv: cannot be read: No such file or directory"),
        (["empty"], "l.png", "{0}/empty/losses.csv: holds no step"),
        (["a"], "a/losses.csv/l.png", "{0}/a/losses.csv: cannot be written: "),
    ],
)
def test_bad_use_of_the_command_is_one_line(two_runs, capsys, runs, out, said):
    before = sorted(two_runs.rglob("*"))
    words = [*(str(two_runs / run) for run in runs), f"--out={two_runs / out}"]
    line = assert_one_line(main(parity, ["losses", *words]), capsys.readouterr().err)
    assert line.startswith(f"error: {said.format(two_runs)}")
    assert sorted(two_runs.rglob("*")) == before
