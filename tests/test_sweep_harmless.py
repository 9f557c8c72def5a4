"""What changes nothing but rounding raises no alarm."""

import ast
import dataclasses
import itertools
import re

import pytest
from conftest import FRAMEWORKS

from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.twins.faults.fault import DTYPES, KERNELS
from parity.twins.faults.side_runs import Planting, SideRuns
from parity.twins.faults.small_runs import SETTINGS
from parity.twins.launch.edited_source import edited_texts
from parity.twins.launch.processes import ROOT
from parity.twins.sweep.harmless import HARMLESS, alarm, rewritten

BY_NAME = {rewrite.name: rewrite for rewrite in HARMLESS}


def some():
    """Yield each rewrite once, taking turns between the sides, precisions and kernels.

    All of them are `python -m parity sweep --harmless --kernels fast,plain`.
    """
    for number, rewrite in enumerate(HARMLESS):
        places = [
            (k, side) for k in KERNELS for side in FRAMEWORKS if side in rewrite.edits_for(k)
        ]
        kernels, side = places[number % len(places)]
        yield Planting(rewrite, side, DTYPES[number // 4 % len(DTYPES)], kernels)


@pytest.fixture(scope="module")
def runs(frameworks, tmp_path_factory):
    return SideRuns(tmp_path_factory.mktemp("harmless"), frameworks)


@pytest.mark.thorough
@pytest.mark.parametrize("planted", [*some()], ids=lambda planted: planted.name)
def test_no_alarm_is_raised(runs, planted):
    assert alarm(runs, planted) == ""


@pytest.mark.thorough
def test_a_rewrite_that_is_not_harmless_is_told(runs):
    loss = BY_NAME["loss-as-mean"]
    (edit,) = loss.edits["tensorflow"]
    wrong = edit.new.replace("count * inputs.scale", "count * inputs.scale * (1 + 1e-9)")
    edits = {"tensorflow": (dataclasses.replace(edit, new=wrong),)}
    planted = Planting(dataclasses.replace(loss, edits=edits), "tensorflow", "float64", "fast")
    assert "first mismatch, on the rung loss" in alarm(runs, planted)


@pytest.mark.parametrize("rewrite", HARMLESS, ids=lambda rewrite: rewrite.name)
def test_each_rewrite_changes_the_code(rewrite):
    assert len(BY_NAME) == len(HARMLESS)
    assert re.fullmatch(r"[a-z0-9-]+", rewrite.name)
    assert rewrite.setting in SETTINGS
    for kernels in KERNELS:
        for side, edits in rewrite.edits_for(kernels).items():
            for name, text in edited_texts(edits, ROOT).items():
                assert name.split("/")[0] == {"tensorflow": "tf_impl"}.get(side, "paddle_impl")
                assert ast.dump(ast.parse(text)) != ast.dump(
                    ast.parse((ROOT / name).read_text())
                )


def test_all_are_planted_and_none_is_chosen(capsys):
    planned = list(rewritten(KERNELS))
    assert len({each.name for each in planned}) == len(planned)
    assert {(each.side, each.dtype, each.kernels) for each in planned} == set(
        itertools.product(FRAMEWORKS, DTYPES, KERNELS)
    )
    for words in (["--only", "3"], ["--strategy", "layers"]):
        assert main(parity, ["sweep", "--harmless", *words]) == 2
        said = f"error: {words[0]} is given with --harmless; allowed: without it"
        assert said in capsys.readouterr().err
