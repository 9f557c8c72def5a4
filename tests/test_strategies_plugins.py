"""A network, a strategy and a framework from outside the tree train like those inside."""

import json
import os
import signal
from pathlib import Path

import pytest
from conftest import FOLDERS, assert_one_line, ended, flags, one_line, start, wait_for

from parity.base.errors import UsageError
from parity.base.plugins import VARIABLE, load_plugins
from parity.twins.launch.fork_server import ForkServer

TESTS = Path(__file__).resolve().parent
PLUGIN = str(TESTS / "toy_plugin.py")


def run(command, plugins=PLUGIN):
    environment = {**os.environ, VARIABLE: plugins, "PYTHONPATH": str(TESTS)}
    process = start(command, env=environment)
    printed, errors = process.communicate()
    return process.returncode, printed, errors


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Return Paddle with the plug-in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, PLUGIN)
        patch.setenv("PYTHONPATH", str(TESTS))
        server = ForkServer("paddle", tmp_path_factory.mktemp("outside"))
    with server:
        yield server


def test_a_network_and_a_strategy_from_outside_match(text, cache, tmp_path):
    """Recorded beside the oracle: every rung, on uneven replicas, and its evaluation.

    The network names no embeddings: processes send each other the whole of its gradients.
    """
    strategies = [("paddle", "parallel-executor"), ("paddle", "data-parallel")]
    strategies += [("tensorflow", "one-device"), ("tensorflow", "multi-worker")]
    status, printed, errors = run(
        [
            *("-m", "parity", "run", "--network", "bigram", "--steps", "4", "--dtype"),
            *("float64", "--replicas", "3", "--no-throughput", "--data", text),
            *("--strategy", ",".join(f"{side}={name}" for side, name in strategies)),
            *("--checks", "evaluation"),
            *("--out", tmp_path, "--cache", cache),
        ]
    )
    assert status == 0, errors
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["network"]) == ("match", "bigram")
    sides = report["sides"].values()
    assert {side["strategy"] for side in sides} == {name for _, name in strategies}
    assert report["rungs"]["gradient"]["worst_relative"] > 0
    assert "verdict: match" in printed


@pytest.mark.parametrize(
    "framework", ["paddle", pytest.param("tensorflow", marks=pytest.mark.thorough)]
)
def test_a_framework_from_outside_matches_each_of_the_two(framework, text, cache, tmp_path):
    """Its trainer lies in a folder of its own, and runs in a process of its own."""
    words = ["-m", "parity", "run", "--preset", "tiny", "--steps", "3", "--dtype", "float64"]
    words += ["--frameworks", f"numpy,{framework}", "--replicas", "2", "--checks", "none"]
    words += ["--no-throughput", "--batch-size", "3", "--time", "8", "--data", text]
    words += ["--out", tmp_path, "--cache", cache]
    status, _, errors = run(words, "toy_framework")
    assert status == 0, errors
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "match"
    assert list(report["sides"]) == [f"{framework}-2", "numpy-2"]
    rungs = report["runs"][0]["rungs"]
    pairs = {(pair["a"], pair["b"]) for pair in rungs["gradient"]["pairs"]}
    assert (f"{framework}-2", "numpy-2") in pairs


def test_a_framework_that_does_not_take_part_is_one_line(tmp_path):
    common = ["-m", "parity", "run", "--out", tmp_path / "out"]
    for words, allowed in (
        (["--frameworks", "torch"], "is 'torch'; allowed: paddle, tensorflow, numpy"),
        (["--frameworks", "numpy", "--network", "seq2seq"], "seq2seq: paddle, tensorflow"),
        (["--frameworks", "paddle", "--strategy", "tensorflow=towers"], "of paddle, which"),
    ):
        assert allowed in assert_one_line(*run([*common, *words], "toy_framework")[::2])
    assert not (tmp_path / "out").exists()


def test_a_network_from_outside_trains_saves_and_resumes(outside, text, cache, tmp_path):
    common = ["--network", "bigram", "--width", "5", "--data", text, "--cache", cache]
    common += ["--out", tmp_path, "--replicas", "2"]
    ended(outside.train(*common, "--steps", "3"))
    assert "resumed at step 3" in ended(outside.train(*common, "--resume"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert 1 < summary["test_perplexity"] < 1000


def test_a_network_that_does_not_say_where_its_layers_begin_has_one_stage(
    outside, text, cache, tmp_path
):
    common = ["--network", "bigram", "--data", text, "--cache", cache, "--out", tmp_path]
    common += ["--strategy", "layers", "--replicas", "1", "--steps", "2", "--stages"]
    line = assert_one_line(*outside.train(*common, "2").wait()[::2])
    assert line.startswith("error: --stages is 2, but the network 'bigram' does not declare")
    ended(outside.train(*common, "1"))


@pytest.mark.parametrize("command", [["-m", "parity", "doctor"], ["tf_impl/train.py"]])
def test_a_plugin_that_cannot_be_loaded_is_one_line(command):
    line = assert_one_line(*run(command, "no_such_module")[::2])
    assert VARIABLE in line
    assert "no_such_module" in line


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "unfinished.py",
            "def broken(:\n",
            "(unfinished.py, line 1)",
        ),
        ("raising.py", "raise RuntimeError('of its own')\n", "RuntimeError: of its own"),
        ("leaving.py", "raise SystemExit(0)\n", "SystemExit: 0"),
        ("json.py", "", "ImportError: another module is called json"),
        *(
            (
                f"of_{part}.py",
                "from dataclasses import replace\n"
                "from parity.twins.spec.networks import NETWORKS\n"
                f"replace(NETWORKS['language-model'], {part}={{{entry}}})\n",
                f"{part} of network 'language-model' has 'words', an array that its batch "
                "lacks; it has tokens, targets, lengths",
            )
            for part, entry in (
                ("lengths", "'time': 'words'"),
                ("vocabularies", "'words': 'vocabulary_size'"),
                ("embeddings", "'embed/table': 'words'"),
            )
        ),
    ],
)
def test_a_plugins_own_mistake_is_one_line(tmp_path, monkeypatch, name, content, reason):
    (tmp_path / name).write_text(content)
    monkeypatch.setenv(VARIABLE, str(tmp_path / name))
    with pytest.raises(UsageError) as caught:
        load_plugins()
    assert reason in one_line(caught)


@pytest.mark.parametrize("command", ["-m parity", "paddle_impl/train.py", "tf_impl/chat.py"])
def test_an_interrupt_while_a_command_loads_is_one_line(command, tmp_path):
    plugin = tmp_path / "interrupts.py"
    plugin.write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    status, _, errors = run([*command.split(), "--help"], str(plugin))
    assert (status, errors) == (130, "error: interrupted\n")


@pytest.mark.parametrize("command", ["-m parity", "paddle_impl/train.py", "tf_impl/chat.py"])
def test_an_interrupt_after_a_command_is_over_says_nothing(command, tmp_path):
    plugin = tmp_path / "interrupts.py"
    plugin.write_text(
        "import atexit, os, signal, time\n"
        "@atexit.register\n"
        "def interrupt():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.01)\n"
    )
    status, _, errors = run([*command.split(), "--help"], str(plugin))
    assert (status, errors) == (0, "")


@pytest.mark.parametrize(
    ("side", "library"), [("paddle", "libpaddle.so"), ("tensorflow", "_pywrap_tensorflow")]
)
def test_an_interrupt_while_an_engine_loads_is_one_line(side, library, text, tmp_path):
    """A library that is loaded takes the exception for an error of its own."""
    given = flags(data=text, out=tmp_path / "out")
    process = start([f"{FOLDERS[side]}/train.py", *given])
    maps = Path(f"/proc/{process.pid}/maps")
    wait_for(lambda: library in maps.read_text())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors.splitlines()[-1]) == (130, "error: interrupted")
    assert "Error" not in errors
