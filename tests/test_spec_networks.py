"""The tables of the networks: what a step of each reads, computes and changes, by name."""

import ast
from dataclasses import replace
from functools import cache

import pytest
from oracle_side import recorded_steps, small_pairs_spec

from parity.twins.bench.cases import peers_left_out
from parity.twins.faults.small_runs import write_texts
from parity.twins.launch.processes import ROOT
from parity.twins.launch.zipf_text import write_zipf_text
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.sweep.random_runs import DrawnText, draw
from parity.twins.trace.contents import tensor_names


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("attention", ["dot", "general", "scaled", "bahdanau"])
@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_names_of_seq2seq_are_those_that_are_computed(
    cell, attention, input_feeding, bidirectional
):
    spec = small_pairs_spec(
        cell=cell,
        attention=attention,
        input_feeding=input_feeding,
        bidirectional=bidirectional,
    )
    later = ("decode/", "evaluate/")  # what is recorded after the last step
    names = [name for name in tensor_names(spec) if not name.startswith(later)]
    (recorded,) = recorded_steps(spec, 1)
    assert set(names) == set(recorded)
    order = [
        "batch/source",
        "batch/tokens",
        "forward/encoder/embedded",
        f"forward/encoder/{cell}_0/hidden",
        f"forward/encoder/{cell}_1/hidden",
        "forward/encoder/h",
        "forward/decoder/embedded",
        f"forward/decoder/{cell}_1/hidden",
        "forward/attention/weights",
        "forward/attention/output",
        "forward/logits",
        "loss/global",
        "gradient/encoder/embed/table",
        "gradient/decoder/embed/table",
        "gradient_norm",
        "clipped_gradient/softmax/bias",
        "optimizer/softmax/bias/m",
        "weight/encoder/embed/table",
        "replicas/weight/encoder/embed/table",
    ]
    assert order == sorted(order, key=names.index)


@cache
def constants():
    """Return (file, line, value) of every constant of the sources."""
    return [
        (str(path.relative_to(ROOT)), node.lineno, node.value)
        for folder in ("parity", "paddle_impl", "tf_impl", "data")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    ]


def named(names, allowed):
    """Return where a string of the sources is one of these names, but for allowed files."""
    return [
        f"{file}:{line}"
        for file, line, value in constants()
        if value in list(names) and not file.startswith(tuple(allowed))
    ]


def test_no_other_module_names_a_network():
    """What depends on the network is in its entry: a further one needs no change elsewhere.

    Faults are planted in the code of a network, so their small runs may choose one.
    """
    of_networks = {"parity/twins/faults/small_runs.py", "parity/twins/spec/networks/"}
    assert named(set(NETWORKS), of_networks) == []


def test_few_modules_name_a_strategy():
    """A strategy is a module, an entry and a page; "layers" is a word of its own, too."""
    allowed = {
        "paddle_impl/strategies/",
        "tf_impl/strategies/",
        "parity/twins/faults/small_runs.py",  # what faults are planted in
        "parity/twins/launch/peer_strategies.py",  # of other frameworks
        # Horovod, as a launcher of processes
        "parity/twins/processes/launcher_variables.py",
        "parity/twins/processes/private_network.py",
        "parity/twins/training/rank_agreement.py",
        "tf_impl/engine.py",
    }
    names = {entry.name for each in FRAMEWORKS.values() for entry in each.strategies}
    assert named(names - {"layers"}, allowed) == []


def test_a_third_network_of_pairs_gets_pairs(monkeypatch, tmp_path):
    third = replace(NETWORKS["seq2seq"], name="third", draw=None)
    monkeypatch.setitem(NETWORKS, "third", third)
    spec = replace(small_pairs_spec(), network="third")
    timed, folder = write_zipf_text(spec, 2, tmp_path / "timed")
    assert timed.text.source_segmenter == "spaces"
    drawn = DrawnText("short", words=9, batches=2, more=0, seed=1).write(
        spec, tmp_path / "drawn"
    )
    for lines in ((each / "train.tsv").read_text().splitlines() for each in (folder, drawn)):
        assert {line.count("\t") for line in lines} == {1}
    assert write_texts(tmp_path / "planted")["third"].joinpath("test.tsv").is_file()
    assert list(peers_left_out(spec)) == ["keras"]
    assert {draw(0, number).spec.network for number in range(9)} == {
        "language-model",
        "seq2seq",
    }
