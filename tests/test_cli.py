"""The command lines: the same flags on both sides, and one line for each mistake."""

import dataclasses
import errno
import os
import re
from pathlib import Path

import click
import numpy as np
import pytest
from conftest import FOLDERS, SIGNALS, assert_one_line, processes_in, start, wait_for
from conftest import run_python as run

from parity import Recorder
from parity.base.errors import DEFECT_STATUS, NumericFailure, SideFailed, UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.twins.cli.command_line import command_options, spec_from, spec_options, take_options
from parity.twins.cli.config import config_options, errors_name_config
from parity.twins.cli.options import RunOptions, TrainOptions
from parity.twins.commands import COMMANDS
from parity.twins.launch.processes import ROOT, raise_for_status, spec_flags
from parity.twins.spec.fields import flag
from parity.twins.spec.frameworks import FRAMEWORKS, strategies_named
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import TrainSpec, preset

TRAINERS = {name: ROOT / folder / "train.py" for name, folder in FOLDERS.items()}
# network -> the fields of its specs; and those of all networks together
FIELDS = {
    name: [f for cls in (each.model, each.text, TrainSpec) for f in dataclasses.fields(cls)]
    for name, each in NETWORKS.items()
}
SPEC_FIELDS = [field for fields in FIELDS.values() for field in fields]
ALL_PRESETS = [(network, name) for network in NETWORKS for name in NETWORKS[network].presets]


@pytest.fixture(scope="module")
def helps():
    """Return the whole help of both trainers."""
    return {name: run(script, "--help-all") for name, script in TRAINERS.items()}


def test_both_trainers_have_the_same_flags(helps):
    texts = {}
    for name, done in helps.items():
        assert done.returncode == 0
        titled = done.stdout.replace(FRAMEWORKS[name].title, "FRAMEWORK", 1)
        texts[name] = titled.replace("tf_impl", "paddle_impl").replace(name, "FRAMEWORK")
    assert texts["paddle"] == texts["tensorflow"]


def groups(text):
    """Return heading -> the flags under it, of a help text."""
    found, heading = {}, None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z].*:", line):
            heading = found.setdefault(line[:-1], [])
        elif line.startswith("  -"):
            heading.append(re.search(r"--[\w-]+", line)[0])
    return found


@pytest.mark.parametrize("name", ["run", "bench", "converge", "faults"])
def test_a_long_help_is_cut_to_what_most_people_need(capsys, name):
    printed = []
    for word in ("-h", "--help-all"):
        assert main(parity, [name, word]) == 0
        printed.append(capsys.readouterr().out)
    short, whole = ([f for g in groups(text).values() for f in g] for text in printed)
    assert (printed[0] == printed[1]) == (len(whole) < 30)
    assert set(short) <= set(whole)
    assert len(short) <= 20
    more = re.search(r"(\d+) more options: .* --help-all$", printed[0].strip())
    assert int(more[1]) == len(whole) - len(short) if more else short == whole


def test_the_help_of_every_command_has_no_loose_ends():
    listed = run("-m", "parity", "--help").stdout
    assert "..." not in listed.partition("Commands:")[2], "a description is cut off"
    for name, command in (parity.commands | COMMANDS).items():
        context = click.Context(command, info_name=name)
        text = command.get_help(context)
        others = {"--debug", "--help", "--help-all"}
        assert set(groups(text).get("Other options", [])) <= others, name
        assert not re.search(r"^  [A-Z_.]+$", text, re.MULTILINE), f"{name}: no description"
        assert not re.search(r",[a-z]$", text, re.MULTILINE), f"{name}: a word is broken"


def test_the_help_lists_the_names_that_an_option_takes(helps):
    # the help may break a line at a hyphen
    text = " ".join(helps["tensorflow"].stdout.split()).replace("- ", "-")
    assert "network to train (language-model, seq2seq)" in text
    for network, each in NETWORKS.items():
        assert f"{network}: {', '.join(each.presets)}" in text
    for each in FRAMEWORKS.values():
        assert f"{each.title}: {', '.join(entry.name for entry in each.strategies)}" in text


def parsed(*words, cls=TrainOptions, left_out=()):
    """Return the spec and the options that a command line makes, or its status."""
    found = []

    @click.command()
    @config_options
    @command_options(cls)
    @spec_options(*left_out)
    def command(print_config, **values):
        with errors_name_config():
            options = take_options(cls, values)
            found.append((spec_from(options.network, options.preset, values), options))
        return 0

    status = main(command, list(map(str, words)))
    return found[0] if found else status


def test_no_flag_is_the_preset_as_it_stands():
    assert parsed() == (preset("language-model", "tiny"), TrainOptions())


def other(field):
    """Return an allowed value that is not the default."""
    choices = field.metadata["choices"]
    if choices:
        return next(choice for choice in choices if choice != field.default)
    if isinstance(field.default, bool):
        return not field.default
    return 0.123 if isinstance(field.default, float) else 18


def words_of(field, value):
    """Return the words that set a field."""
    name = flag(field.name)
    if isinstance(value, bool):
        return [name if value else f"--no-{name[2:]}"]
    return [name, value]


@pytest.mark.parametrize(
    ("network", "field"),
    [
        pytest.param(network, field, id=f"{network}-{field.name}")
        for network, fields in FIELDS.items()
        for field in SPEC_FIELDS
        if field.name not in {own.name for own in fields}
    ],
)
def test_flags_of_another_network_are_refused(capsys, network, field):
    """Even where the value is the other network's default."""
    (has_it,) = {"language-model", "seq2seq"} - {network}
    for value in (other(field), field.default):
        status = parsed("--network", network, *words_of(field, value))
        assert assert_one_line(status, capsys.readouterr().err) == (
            f"error: {flag(field.name)} is not a flag of --network {network}; "
            f"allowed with --network {has_it}"
        )


def test_sync_chooses_the_synchronous_form_of_parameter_servers():
    for given in ("parameter-server", "parameter-server-sync"):
        options = TrainOptions(strategy=given, sync=True)
        assert options.strategy == "parameter-server-sync"
    words = ("tensorflow=parameter-server",)
    run = RunOptions(strategy=words, sync=True)
    assert run.strategy == ("tensorflow=parameter-server-sync",)
    assert RunOptions(strategy=words).strategy == words


def test_a_strategy_that_a_framework_lacks_is_refused_with_the_reason():
    said = r"parameter-server-sync', but Paddle 2\.6\.2's trainers crash"
    with pytest.raises(UsageError, match=said):
        FRAMEWORKS["paddle"].strategies.entry("parameter-server-sync")
    with pytest.raises(UsageError, match=said):
        strategies_named(["paddle=parameter-server-sync"])


def test_resume_stands_alone_or_with_a_path():
    assert parsed()[1].resume is None
    assert parsed("--resume")[1].resume == ""
    assert parsed("--resume", "--steps", 3)[1].resume == ""
    assert parsed("--resume", "out/old")[1].resume == "out/old"


@pytest.mark.parametrize(("network", "name"), ALL_PRESETS)
def test_the_flags_of_a_spec_give_the_same_spec(network, name):
    """The harness starts the sides with these; no value of a preset may remain."""
    spec = preset(network, name).replace(keep=1 / 3, learning_rate=1e-7, dtype="float64")
    for base in NETWORKS[network].presets:
        assert parsed("--preset", base, *spec_flags(spec))[0] == spec


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hidden-size", "0"], "--hidden-size is 0; allowed: >= 1"),
        (["--learning-rate", "nan"], "--learning-rate is nan; allowed: a finite number"),
        (["--device", "tpu"], "--device is 'tpu'; allowed: cpu, gpu"),
        (["--preset", "huge"], "--preset is 'huge'; allowed: tiny, proof, tf2fluid"),
        (["--network", "gan"], "--network is 'gan'; allowed: language-model, seq2seq"),
        (
            ["--network", "seq2seq", "--preset", "zaremba-small"],
            "--preset is 'zaremba-small', which is one of --network language-model; allowed: "
            "tiny, tiny-nmt, proof, chatbot",
        ),
        (
            ["--network", "seq2seq", "--hidden-size", "7", "--bidirectional"],
            "--hidden-size is 7; allowed with --bidirectional: an even number",
        ),
        (["--sync"], "--sync is given without --strategy; allowed: with parameter-server"),
        (
            ["--strategy", "towers", "--sync"],
            "--sync is given with --strategy towers; allowed: --strategy parameter-server",
        ),
        (["--hidden-size", "wide"], "'wide' is not a valid integer"),
        (["--hidden-size"], "Option '--hidden-size' requires an argument"),
        (["--hiden-size", "3"], "--hiden-size"),
        (["text"], "text"),
    ],
)
def test_bad_flags_are_one_line_and_exit_2(capsys, words, said):
    assert said in assert_one_line(parsed(*words), capsys.readouterr().err)


@pytest.mark.parametrize("script", list(TRAINERS.values()), ids=list(TRAINERS))
def test_a_trainer_exits_with_2_before_it_loads_a_framework(tmp_path, script):
    for words, said in (
        (["--strategy", "tower"], "--strategy is 'tower'; allowed for "),
        (["--data", tmp_path / "none"], str(tmp_path / "none")),
    ):
        done = run(script, *words, "--cache", tmp_path / "cache", "--out", tmp_path / "out")
        assert said in assert_one_line(done.returncode, done.stderr)
    assert not (tmp_path / "out").exists()


# the harness


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--replicas", "1,1"], "--replicas is 1,1; allowed: each value once"),
        (
            ["run", "--replicas", "1,x"],
            "--replicas is '1,x'; allowed: numbers separated by commas",
        ),
        (["run", "--dtype", "float64,half"], "--dtype is 'half'; allowed: float64, float32"),
        (["run", "--hidden-size", "9" * 400], "allowed: less than 2**63"),
        (["run", "--threads", "70000"], "--threads is 70000; allowed: >= 1 and <= 1024"),
        (["run", "--preset", "x" * 5000], "xxx...xxx"),
        (["run", "--keep-trace"], "--keep-trace"),
        (
            ["run", "--strategy", "paddle=towers"],
            "is 'paddle=towers'; allowed for paddle: all, par",
        ),
        (["run", "--strategy", "tower"], "allowed: all, parallel-executor"),
        (["walk"], "walk"),
        (["compare", "one"], "TRACE_B"),
        (["compare", "none", "none"], "none: no trace.json here; not a recorded trace"),
    ],
)
def test_bad_use_of_the_harness_is_one_line_and_exit_2(capsys, words, said):
    status = main(parity, words)
    out, errors = capsys.readouterr()
    assert out == ""
    assert said in assert_one_line(status, errors)
    assert len(errors) < 2000


@pytest.mark.parametrize("command", ["run", "bench", "converge", "profile", "faults", "sweep"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(command, tmp_path, capsys):
    words = [command, "--out", str(tmp_path / "out"), "--json", str(tmp_path)]
    line = assert_one_line(main(parity, words), capsys.readouterr().err)
    assert line == f"error: {tmp_path}: is a folder; allowed: a file's name"


# how commands end


def ending(error):
    @click.command()
    @click.option("--debug", is_flag=True)
    def command(debug):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("two\nlines"), 2, "two\\nlines"),  # a file's name may hold a line break
        (NumericFailure("two\nlines"), 3, "two lines"),
    ],
)
def test_an_error_on_purpose_is_one_line_and_its_status(capsys, error, status, line):
    assert main(ending(error), []) == status
    assert capsys.readouterr().err == f"error: {line}\n"
    assert main(ending(error), ["--debug"]) == status
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.endswith(f"error: {line}\n")


@pytest.fixture
def recorded(tmp_path):
    """Return the folder of a trace of one step that was recorded by hand."""
    with Recorder(tmp_path / "trace", framework="mine", dtype="float64") as recorder:
        recorder.step(0, {"weight/a": np.zeros(2)})
    return tmp_path / "trace"


@pytest.mark.parametrize("option", ["--include", "--exclude"])
def test_a_pattern_whose_reading_would_take_minutes_is_refused(recorded, capsys, option):
    status = main(parity, ["compare", *[str(recorded)] * 2, option, "[" * 50_000])
    line = assert_one_line(status, capsys.readouterr().err)
    assert line.endswith("has 50,000 characters; allowed: up to 1,000")


def test_what_a_command_leaves_behind_is_not_waited_for(recorded, capsys):
    leaves = ["sh", "-c", "sleep 1000 & echo $$; exit 3"]
    status = main(parity, ["bounds", str(recorded), "--", *leaves])
    line = assert_one_line(status, capsys.readouterr().err)
    assert re.search("ended with status 3: [0-9]+$", line)


@pytest.mark.parametrize("status", [1, 2, 3])
def test_an_interpreter_that_ends_by_itself_gives_no_verdict(tmp_path, status):
    (tmp_path / "log").write_text("cannot start\n")
    with pytest.raises(SideFailed, match=f"ended with status {status}: cannot start") as failed:
        raise_for_status("paddle", status, tmp_path / "log")
    assert failed.value.exit_status == DEFECT_STATUS


def test_an_error_is_told_by_its_own_line_not_by_where_it_came_from(tmp_path):
    """As TensorFlow's, which a stack follows that tells where the operation was made."""
    (tmp_path / "log").write_text(
        "Traceback (most recent call last):\n"
        '  File "session.py", line 1, in run\n'
        "tensorflow.errors_impl.InternalError: 2 root error(s) found.\n"
        "  (0) INTERNAL: no room for the library\n"
        "Original stack trace for 'MatMul':\n"
        '  File "ops.py", line 1221, in from_node_def\n'
    )
    with pytest.raises(SideFailed, match=r"70: tensorflow\.\S+InternalError: 2 .* no room"):
        raise_for_status("tensorflow", 70, tmp_path / "log")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_bounds_end_with_the_training_that_they_run(recorded, tmp_path, number):
    training = ["sh", "-c", "echo $$ > started; sleep 1000; true"]
    bounds = start(
        ["-m", "parity", "bounds", "trace", "--", *training],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    wait_for((tmp_path / "started").exists)
    os.kill(bounds.pid, number)
    _, errors = bounds.communicate()
    assert_one_line(bounds.returncode, errors, SIGNALS[number])
    wait_for(lambda: not processes_in(tmp_path), seconds=5)
    assert not list(tmp_path.glob("parity-bounds-*"))


LONG = "n" * 300


@pytest.mark.parametrize("source", ["pipe", "/dev/zero", "folder", LONG])
@pytest.mark.parametrize(
    "command",
    [
        "run --config {}",
        "run --hosts {} --strategy data-parallel,multi-worker",
        "compare {} {}",
        "losses {}",
        "converge --data {}",
    ],
)
def test_what_is_no_file_is_one_line(tmp_path, monkeypatch, capsys, source, command):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    for name in ("trace.json", "losses.csv"):  # a trace and a run that have a pipe in them
        os.mkfifo(Path("folder") / name)
    status = main(parity, command.replace("{}", source).split())
    assert source[:30] in assert_one_line(status, capsys.readouterr().err)


def test_errors_of_the_system_are_one_line_and_others_are_defects(capsys):
    for error, status in (
        (OSError(errno.EIO, "Input/output error"), 2),
        (OSError(errno.EACCES, "Permission denied", "a"), 2),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/']"), 2),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"), DEFECT_STATUS),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset"), DEFECT_STATUS),
        (KeyError("x"), DEFECT_STATUS),
    ):
        assert main(ending(error), []) == status
        errors = capsys.readouterr().err
        assert ("Traceback" in errors) == (status == DEFECT_STATUS)
    assert DEFECT_STATUS not in (0, 1, 2, 3), "1 says that a mismatch was found"
