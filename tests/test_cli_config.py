"""`--config` and `--print-config`: a run is one file, which trains the same again."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from conftest import ONE_FRAMEWORK, assert_one_line, ended, flags, start
from test_cli import TRAINERS, parsed

from parity.base.errors import UsageError
from parity.base.files import CONFIG
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.trace.reader import Trace
from parity.trace.writer import Writer
from parity.twins.cli.config import config_text
from parity.twins.cli.options import RunOptions, TrainOptions
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import preset
from parity.twins.spec.strategies import StrategySettings
from parity.twins.training.checkpoint import newest_checkpoint


@pytest.fixture
def config(tmp_path):
    """Return a function that writes a file of options and returns its path."""

    def write(content) -> Path:
        path = tmp_path / "c.yaml"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
        return path

    return write


# what a file can say


def test_keys_are_the_names_of_options_in_either_spelling(config):
    path = config(
        "# a comment\nnetwork: seq2seq\nhidden-size: 7\nembedding_size: 9\n"
        "learning-rate: 1e-3\nclip-norm: 5\nbidirectional: false\noverwrite: true\n"
        "out: 2024\nschedule: 5\nsteps:\nresume: ''\n"
    )
    spec, options = parsed("--config", path)
    assert spec == preset("seq2seq", "tiny").replace(
        hidden_size=7, embedding_size=9, learning_rate=1e-3, clip_norm=5.0, bidirectional=False
    )
    assert isinstance(spec.training.clip_norm, float)
    assert options == TrainOptions(
        network="seq2seq",
        overwrite=True,
        out=Path("2024"),
        resume="",
        settings=StrategySettings(schedule="5"),
    )


def test_flags_win_wherever_they_stand(config):
    path = config("hidden-size: 7\nthroughput: false\nreplicas: [1, 2]\nsteps: 3\n")
    for words in (["--config", path], ["--steps=5", "--config", path]):
        both = [*words, "--hidden-size=8", "--throughput", "--preset=tiny", "--replicas=4"]
        spec, options = parsed(*both, cls=RunOptions, left_out=("dtype",))
        assert spec.model.hidden_size == 8
        assert options.throughput
        assert options.replicas == (4,)
        assert options.steps == (5 if words[0] == "--steps=5" else 3)


@pytest.mark.parametrize("several", ["[1, 2]", "1,2", "\n- 1\n- 2", '"1,2"'])
def test_several_values_are_a_list_or_what_a_flag_takes(config, several):
    words = "[float32]" if several.startswith("[") else "float32"
    path = config(f"replicas: {several}\ndtype: {words}\npreset: tiny\n")
    _, options = parsed("--config", path, cls=RunOptions, left_out=("dtype",))
    assert options.replicas == (1, 2)
    assert options.dtype == ("float32",)


def changed(cls):
    """Return options of which every one differs from its default."""
    values = {}
    for field in dataclasses.fields(cls):
        kind, choices = str(field.type), field.metadata.get("choices")
        one = choices[-1] if choices else 3 if "int" in kind else 0.3
        if field.name == "settings":
            values["settings"] = StrategySettings(
                stages=2,
                micro_batches=3,
                shard_weights="equal",
                schedule="7",
                staleness=2,
                processes=2,
                servers=1,
            )
        elif "bool" in kind:
            values[field.name] = not field.default
        elif "Path" in kind:
            values[field.name] = Path("a b/中文: #1\udcff.txt")
        elif "str" in kind and not choices:
            values[field.name] = ("null", "x=1") if "tuple" in kind else "no: 'yes' "
        else:
            values[field.name] = (one,) if "tuple" in kind else one
    values |= {"network": "seq2seq", "preset": "tiny", "sync": False}
    if cls is TrainOptions:
        values |= {"profile": None, "evaluate_only": False, "max_restarts": 0}
        values["stall_seconds"] = 130.5
    return cls(**values)


@pytest.mark.parametrize("cls", [TrainOptions, RunOptions])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_option_comes_back_as_it_was_written(config, cls, network):
    options = dataclasses.replace(changed(cls), network=network)
    left_out = ("dtype",) if cls is RunOptions else ()
    for name in NETWORKS[network].presets:
        spec = preset(network, name).replace(epochs=1234, seed=99)
        path = config(config_text(options, spec))
        again, read = parsed("--config", path, cls=cls, left_out=left_out)
        assert read == options
        assert again == spec
    # with defaults, most of them null
    options = cls(network=network, preset="tiny")
    path = config(config_text(options, spec))
    assert parsed("--config", path, cls=cls, left_out=left_out) == (spec, options)


# what a file cannot say

WRONG = {
    "hidden-sizes: 7": "line 1: hidden-sizes is no option; allowed: hidden-size, or an option",
    "config: a.yaml": "line 1: config is no option",
    "hidden-size: wide": "line 1: hidden-size is 'wide'; allowed: an integer",
    "hidden-size: 010": "line 1: hidden-size is '010'; allowed: an integer",  # 8 in YAML 1.1
    f"hidden-size: {'9' * 5000}": f"line 1: hidden-size is '{'9' * 40}...'; allowed: an int",
    "learning-rate: .nan": "line 1: learning-rate is nan; allowed: a finite number",
    "seed: 1\nlearning-rate: -1": "line 2: learning-rate is -1.0; allowed: > 0",
    "overwrite: 1": "line 1: overwrite is '1'; allowed: true or false",
    "attention: dot": "line 1: attention is not a flag of --network language-model",
    "hidden-size: 7\nhidden_size: 8": "line 2: hidden_size is also in line 1; allowed: each",
    "evaluate-only: true": "line 1: evaluate-only is given without --resume",
    'data: "a\\0b"': "line 1: data is 'a\\x00b'; allowed: what a flag can take",
    "text": "line 1: is no list of options; allowed: lines of `option: value`",
    "seed: {a: 1}": "line 1: has options within an option",
    "data: " + "[" * 60_000: "line 1: is nested too deeply",
    "? [a]\n: 1": "line 1: a list or a mapping is no option",
    "seed: 1\ndata: &a b\nout: &a c": "line 2: has an anchor, an alias or a tag",
    "data: !!python/object/apply:os.system [ls]": "line 1: has an anchor, an alias or a tag",
    "seed: 1\n---\nseed: 2": "line 2: begins a second document",
    "seed: 1\ndata: [a": "line 2: is no YAML: ",
    "seed: 1\n\x07": "line 2: has the character '\\x07', no YAML",
    b"seed: 1 \xff": ": is not UTF-8 at byte 8",
    "seed: 1\n" * 9000: ": is larger than 65,536 bytes",
}


@pytest.mark.parametrize("content", WRONG, ids=lambda content: repr(content[:20]))
def test_what_is_wrong_is_one_line_with_file_and_key(config, capsys, content):
    path = config(content)
    line = assert_one_line(parsed("--config", path), capsys.readouterr().err)
    between = "" if WRONG[content].startswith(":") else ", "
    assert line.startswith(f"error: {path}{between}{WRONG[content]}"), line
    assert len(line) < 300 + len(str(path))


def test_what_cannot_be_read_is_refused_before_anything_is_written(config, tmp_path, capsys):
    for path, said in (
        (tmp_path / "none.yaml", "--config: {}: cannot be read: No such file or directory"),
        (tmp_path, "--config: {}: cannot be read: Is a directory"),
        (config("strategy: wrong"), "{}, line 1: strategy is 'wrong'"),
        # and nothing is wrong with the file
        ("/dev/null", "--beam is 0; allowed: >= 1"),
    ):
        more = ["--beam=0"] if path == "/dev/null" else []
        words = ["run", "--config", path, "--out", tmp_path / "out", *more]
        line = assert_one_line(main(parity, list(map(str, words))), capsys.readouterr().err)
        assert line.startswith(f"error: {said.format(path)}"), line
    assert not (tmp_path / "out").exists()


# what is printed and written


def printed(*words) -> str:
    process = start([*words, "--print-config"])
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def test_both_sides_print_the_same_configuration_but_for_the_strategy(config, text, cache):
    given = flags(data=text, cache=cache, replicas=None, steps=4)
    values = {name: yaml.safe_load(printed(each, *given)) for name, each in TRAINERS.items()}
    strategies = [each.pop("strategy") for each in values.values()]
    assert strategies == ["parallel-executor", "towers"]
    first, second = values.values()
    assert first == second
    # what depends on the machine is filled in, and what was given is as it was
    assert isinstance(first["replicas"], int)
    assert isinstance(first["threads"], int)
    assert (first["steps"], first["hidden-size"], first["vocabulary-size"]) == (4, 6, 40)
    assert set(first) >= {
        field.name.replace("_", "-")
        for field in dataclasses.fields(TrainOptions)
        if field.name not in ("settings", "strategy")
    }


@ONE_FRAMEWORK
def test_the_file_in_a_run_folder_trains_the_same_to_the_bit(text, cache, tmp_path, framework):
    first, second = tmp_path / "first", tmp_path / "second"
    given = flags(data=text, cache=cache, steps=7, seed=5, replicas=None, kernels="plain")
    runs = [
        [*given, "--out", first, "--overwrite", "--debug"],
        ["--config", first / CONFIG, "--out", second],
    ]
    for words in runs:
        ended(framework.train(*words))
    values = [yaml.safe_load((each / CONFIG).read_text()) for each in (first, second)]
    assert [each.pop("out") for each in values] == [str(first), str(second)]
    assert values[0] == values[1]
    assert values[0]["vocabulary-size"] == 40  # as asked for, not the 16 words of the text
    assert "overwrite" not in values[0]
    saved = [newest_checkpoint(each / "checkpoints", []) for each in (first, second)]
    assert saved[0] is not None
    assert saved[1] is not None
    assert saved[0].step == saved[1].step == 7
    assert saved[0].spec.training.seed == 5
    for name, array in saved[0].snapshot.items():
        assert array.tobytes() == saved[1].snapshot[name].tobytes(), name
    # the folder has a run, which is not replaced by accident
    line = assert_one_line(*framework.train("--config", first / CONFIG).wait()[::2])
    assert line.startswith(f"error: {first}: already has a run")


@ONE_FRAMEWORK
def test_a_trace_has_the_file_from_which_it_is_recorded_again(framework, text, cache, tmp_path):
    trace, given = tmp_path / "trace", flags(data=text, cache=cache, steps=2)
    for words in ([*given, f"--trace={trace}"], ["--config", trace / CONFIG]):
        ended(framework.train(*map(str, words)))
        values = yaml.safe_load((trace / CONFIG).read_text())
        assert (values["trace"], values["steps"]) == (str(trace), 2)
        assert [step for step, _ in Trace(trace).steps()] == [0, 1]
        assert {path.name for path in trace.iterdir()} == {
            *("trace.json", "steps.jsonl", CONFIG),
            *(f"step-00000{step}.safetensors" for step in range(2)),
        }
    (trace / CONFIG).write_text("# mine\n")
    status, _, said = framework.train(*given, f"--trace={trace}").wait()
    assert assert_one_line(status, said).startswith(f"error: {trace / CONFIG}: no run has ")
    with pytest.raises(UsageError, match=f"holds '{CONFIG}', which is no part of a trace"):
        Writer(trace, {})  # nor does a recorder of other trainings remove it
    assert (trace / CONFIG).read_text() == "# mine\n"


def test_a_file_of_the_user_is_never_replaced(tmp_path, text, cache):
    mine = tmp_path / CONFIG
    mine.write_text("# mine\nseed: 5\n")
    words = [TRAINERS["paddle"], "--config", mine, *flags(data=text, cache=cache, steps=1)]
    process = start([*words, "--out", tmp_path])
    line = assert_one_line(process.wait(), process.communicate()[1])
    assert line.startswith(f"error: {mine}: no run has written it, and this one would replace")
    assert mine.read_text() == "# mine\nseed: 5\n"
    assert sorted(tmp_path.iterdir()) == [mine]
