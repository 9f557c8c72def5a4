"""Asking a trained network: both programs, both checkpoints, a person, files, bad input."""

import dataclasses
import io
import itertools
import os
import re
import runpy
import select
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    FOLDERS,
    FRAMEWORKS,
    ONE_FRAMEWORK,
    assert_one_line,
    ended,
    flags,
    wait_for,
)
from oracle_side import small_spec

from parity.base.errors import UsageError
from parity.twins.chat import conversation as chat
from parity.twins.chat.conversation import converse, open_trained
from parity.twins.cli.options import ChatOptions
from parity.twins.decoding import evaluation
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.token_by_token import greedy_search, sample
from parity.twins.launch.processes import ROOT
from parity.twins.oracle.decode import OracleModel
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.training.checkpoint import Checkpoint, best_checkpoint, save_checkpoint

QUESTIONS = ["你 好", "他 来 吗", "猫", "猫 睡 好 吗", "不认识 狗", "我 去"]
DTYPES = {"paddle": "float64", "tensorflow": "float32"}  # of the run that each side trains


@pytest.fixture(scope="session")
def runs(frameworks, cache, once):
    """Return framework -> the folder of a run on tokenised pairs, long enough to learn some."""
    (folder,) = once.fill(["chat"], lambda folders: train(frameworks, cache, folders[0]))
    return {name: folder / f"run-{name}" for name in frameworks}


def train(frameworks, cache, folder):
    """Train a run of each framework, `run-paddle` and `run-tensorflow`, in a folder."""
    firsts, seconds = ["你", "他", "我", "猫", "狗", "鸟"], ["好", "来", "去", "吃", "睡", "飞"]
    lines = [
        f"{first} {second}{' 吗' * (number % 2)}\t{second} {'的' if number % 3 else '了 。'}"
        for number, (first, second) in enumerate(itertools.product(firsts, seconds))
    ]
    for name, kept in (("train", lines), ("valid", lines[::4]), ("test", lines[::5])):
        (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in kept))
    spec = {
        "network": "seq2seq",
        "time": None,
        "vocabulary_size": None,
        "source_segmenter": "spaces",
        "target_segmenter": "spaces",
        "embedding_size": 8,
        "hidden_size": 12,
        "attention": "bahdanau",
        "input_feeding": True,
        "optimizer": "adam",
        "batch_size": 6,
        "keep": 1.0,
        "clip_norm": 5.0,
        "epochs": 10,
        "target_limit": 6,
        "data": folder,
        "cache": cache,
    }
    jobs = {
        name: framework.train(
            *flags(**spec, dtype=DTYPES[name], out=folder / f"run-{name}", replicas=1)
        )
        for name, framework in frameworks.items()
    }
    for job in jobs.values():
        ended(job)


@pytest.fixture(scope="session")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "questions.txt"
    path.write_text("".join(f"{line}\n" for line in QUESTIONS))
    return path


def opened(run, **options):
    """Return a run's network with the oracle as its model, and the options."""
    options = ChatOptions(checkpoint=run, **options)
    trained = open_trained(options)
    weights = {
        name.split("/", 1)[1]: array
        for name, array in trained.checkpoint.snapshot.items()
        if name.startswith("weight/")
    }
    return trained, OracleModel(trained.checkpoint.spec.model, weights), options


def asked(trained):
    """Return the questions as a batch."""
    ids = [trained.words.read(question) for question in QUESTIONS]
    lengths = np.array([len(each) for each in ids])
    source = np.zeros((len(ids), lengths.max()), np.int64)
    for row, each in enumerate(ids):
        source[row, : len(each)] = each
    return source, lengths


def oracles(run, method, seed=1, temperature=1.0):
    """Return the answers and scores that the oracle gives to the questions."""
    trained, model, options = opened(run)
    batch, most = asked(trained), trained.checkpoint.spec.text.target_limit + 1
    if method == "beam":
        found = beam_search(model, *batch, options.beam, options.length_penalty, most)
    else:
        found = sample(model, *batch, most, seed, temperature)
    return [
        [(each.score, trained.words.write(each.tokens)) for each in hypotheses.ranked]
        for hypotheses in found
    ]


# both programs


# what is said of the checkpoint that a folder is opened at
CHOSEN = re.compile(r"step \d+, the best by validation \(BLEU [^\n]*\n")


@pytest.mark.parametrize("writer", FRAMEWORKS)
def test_both_programs_sample_the_oracles_answers(frameworks, runs, questions, writer):
    """From the run that the one has trained, in float64 or float32."""
    words = ["--method=sample", "--seed=4", "--temperature=1.7"]
    jobs = [
        each.chat(f"--checkpoint={runs[writer]}", f"--input={questions}", *words)
        for each in frameworks.values()
    ]
    found = oracles(runs[writer], "sample", seed=4, temperature=1.7)
    expected = [answers[0][1] for answers in found]
    assert len(set(expected)) > 2, "a network that always says the same proves nothing"
    for job in jobs:
        errors = ended(job)
        assert CHOSEN.fullmatch(errors)
        assert job.printed().splitlines() == expected


def shown(text):
    """Return the answers that --top shows, as (score, answer)."""
    return [
        [(float(line[:9]), line[11:]) for line in block.split("\n")]
        for block in text.removesuffix("\n\n").split("\n\n")
    ]


@pytest.mark.parametrize("writer", FRAMEWORKS)
def test_the_beams_are_shown_with_their_scores(frameworks, runs, questions, tmp_path, writer):
    """Of a file of answers, from a checkpoint named itself."""
    checkpoint = (
        runs[writer] / "checkpoints" / best_checkpoint(runs[writer] / "checkpoints").name
    )
    jobs = {
        name: each.chat(
            f"--checkpoint={checkpoint}",
            f"--input={questions}",
            f"--output={tmp_path / name / 'answers.txt'}",
            "--top",
            "--beam=5",
        )
        for name, each in frameworks.items()
    }
    expected = oracles(runs[writer], "beam")
    for name, job in jobs.items():
        status, _, errors = job.wait()
        assert (status, errors, job.printed()) == (0, "", "")
        found = shown((tmp_path / name / "answers.txt").read_text())
        for mine, its in zip(found, expected, strict=True):
            assert [answer for _, answer in mine] == [answer for _, answer in its]
            assert len(mine) == 5
            np.testing.assert_allclose([s for s, _ in mine], [s for s, _ in its], atol=6e-5)


class Terminal:
    """A pseudo-terminal at which a test sits."""

    def __init__(self):
        self._master, self._slave = os.openpty()
        self.name, self.seen, self._read = os.ttyname(self._slave), "", b""
        self._at = 0  # the end of what was waited for

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def wait_for(self, pattern: str) -> str:
        """Wait until a pattern has come up since the last call, and return what came."""
        last = time.monotonic() + 15
        while not (found := re.search(pattern, self.seen[self._at :], re.DOTALL)):
            ready, _, _ = select.select([self._master], [], [], last - time.monotonic())
            assert ready, f"waited in vain for {pattern!r}: {self.seen!r}"
            self._read += os.read(self._master, 4096)
            self.seen = self._read.decode(errors="ignore")
        start, self._at = self._at, self._at + found.end()
        return self.seen[start : self._at]

    def rest(self) -> str:
        while select.select([self._master], [], [], 0.05)[0]:
            self._read += os.read(self._master, 4096)
        self.seen = self._read.decode(errors="ignore")
        return self.seen

    def close(self) -> None:
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal():
    each = Terminal()
    yield each
    each.close()


ENDS = {"an empty line": (b"\n", 0), "Ctrl-D": (b"\x04", 0), "Ctrl-C": (b"\x03", 130)}


@ONE_FRAMEWORK
@pytest.mark.parametrize("ends", ENDS)
def test_a_person_asks(framework, runs, terminal, ends):
    job = framework.chat(
        f"--checkpoint={runs['tensorflow']}", "--top", "--beam=2", terminal=terminal.name
    )
    greeting = terminal.wait_for("> ")
    assert re.search(r"lstm with bahdanau attention, trained for \d+ steps by ten", greeting)
    assert re.search(r"it knows words\s+such as .*(你|他|我)", greeting)
    trained, model, _ = opened(runs["tensorflow"])
    for question in QUESTIONS[:2]:
        terminal.type(question.encode() + b"\n")
        answer = terminal.wait_for(r"\n +-\d.*\r\n\r\n> ").replace("\r", "")
        (block,) = shown(answer.split("\n", 1)[1].removesuffix("> "))
        ids = trained.words.read(question)
        (found,) = beam_search(model, ids[None], np.array([len(ids)]), 2, 0.6, 7)
        assert block == [
            (pytest.approx(each.score, abs=6e-5), trained.words.write(each.tokens))
            for each in found.ranked
        ]
        terminal.type("谁 呀\n".encode())
        said = " ".join(terminal.wait_for("谁 呀\r\n.*> ").split())  # echoed, then answered
        told = "question '谁 呀': none of its words is in the vocabulary: 谁 呀; it has"
        assert said.count("question") == said.count(told) == 1
    terminal.type(b"\xff\xfe\n")
    # the locale decides whether these become letters that no word has, or none at all
    assert (
        "is not utf-8: byte 0xff" in (said := terminal.wait_for("\n.*> ")) or "none of" in said
    )
    typed, expected = ENDS[ends]
    until = 0.0

    def ended():
        # a signal that comes between prompt and read does not wake Python: press it again
        nonlocal until
        if time.monotonic() > until:
            terminal.type(typed)
            until = time.monotonic() + 3
        return not Path(f"/proc/{job.pid}").exists()

    wait_for(ended)
    status, _, _ = job.wait()
    assert status == expected
    assert "Traceback" not in terminal.rest()


# converse, with the oracle's network


def answers_of(run, capsys, **options):
    trained, model, options = opened(run, **options)
    converse(lambda: model, trained, options)
    return capsys.readouterr()


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_how_many_are_answered_together_decides_nothing(
    runs, questions, capsys, monkeypatch, method
):
    whole = answers_of(runs["paddle"], capsys, input=questions, method=method).out
    assert len(whole.splitlines()) == len(QUESTIONS)
    monkeypatch.setattr(evaluation, "_QUESTIONS_PER_BATCH", 4)
    assert answers_of(runs["paddle"], capsys, input=questions, method=method).out == whole


def test_a_conversation_samples_what_a_file_does(runs, questions, capsys, monkeypatch):
    """The number of the question counts, not how it is asked."""
    content = questions.read_bytes() * 2
    (again := questions.with_name("again.txt")).write_bytes(content)
    options = {"method": "sample", "temperature": 2.0}
    whole = answers_of(runs["paddle"], capsys, input=again, **options).out.splitlines()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert answers_of(runs["paddle"], capsys, **options).out.splitlines() == whole
    half = len(QUESTIONS)
    assert whole[:half] != whole[half:], "asked again, a question is answered anew"


def test_a_conversation_goes_on_from_its_earlier_turns(runs, capsys, monkeypatch):
    """From questions and answers alike, until an empty line."""
    trained, model, options = opened(runs["paddle"], method="greedy")
    words = dataclasses.replace(trained.words, turns=2, source_limit=12)

    def answer(*turns):
        tokens = " | ".join(turns).split()
        ids = words.source_vocabulary.encode_words(tokens)
        (found,) = greedy_search(model, ids[None], np.array([len(ids)]), 7)
        return words.write(found.best.tokens)

    first = answer("你 好")
    second = answer("你 好", first, "猫 睡")
    third = answer("猫 睡", second, "我 去")
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO("你 好\n猫 睡\n我 去\n\n我 去\n".encode()))
    )
    converse(lambda: model, chat.Trained(trained.checkpoint, words), options)
    said = capsys.readouterr().out.splitlines()
    assert said == [first, second, third, "", answer("我 去")]
    assert [second, third] != [answer("猫 睡"), said[4]], "the turns make a difference"


def test_answers_are_cut_at_the_longest_allowed(runs, questions, capsys):
    limited = answers_of(runs["paddle"], capsys, input=questions, longest=1, method="greedy")
    full = answers_of(runs["paddle"], capsys, input=questions, method="greedy")
    assert [line.split()[:1] for line in full.out.splitlines()] == [
        line.split() for line in limited.out.splitlines()
    ]


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(
    runs, questions, capsys, tmp_path, monkeypatch
):
    windows = tmp_path / "windows.txt"
    content = b"\xef\xbb\xbf" + questions.read_bytes().replace(b"\n", b"\r\n")
    windows.write_bytes(content)
    plain = answers_of(runs["paddle"], capsys, input=questions)
    found = answers_of(runs["paddle"], capsys, input=windows)
    assert found.out == plain.out
    assert found.err.split("step ")[0] == f"{windows}: the UTF-8 byte-order mark was left out\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert answers_of(runs["paddle"], capsys).out == plain.out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xe4\xbd\xa0\n\xff\xff\n", "standard input, line 2: byte 0xff is not UTF-8"),
        ("你\n谁\n".encode(), "standard input, line 2: question '谁': none of its words"),
    ],
)
def test_bad_lines_of_a_pipe_are_named(runs, capsys, monkeypatch, content, said):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(UsageError, match=re.escape(said)):
        answers_of(runs["paddle"], capsys)
    assert len(capsys.readouterr().out.splitlines()) == 1, "the first line was answered"


def test_an_empty_line_has_an_empty_answer_and_is_counted(
    runs, questions, capsys, tmp_path, monkeypatch
):
    plain = answers_of(runs["paddle"], capsys, input=questions).out.splitlines()
    typed = questions.read_text().splitlines()
    holes = ["", typed[0], " \u3000", "\t", *typed[1:], "", ""]
    expected = ["", plain[0], "", "", *plain[1:], "", ""]
    content = "".join(f"{line}\n" for line in holes).encode()
    path, output = tmp_path / "holes.txt", tmp_path / "answers.txt"
    path.write_bytes(content)
    said = "5 empty lines have an empty answer: 1, 3, 4, ...\n"
    found = answers_of(runs["paddle"], capsys, input=path)
    assert found.out.splitlines() == expected
    assert f"{path}: {said}" in found.err.splitlines(keepends=True)
    answers_of(runs["paddle"], capsys, input=path, output=output)
    assert output.read_text().splitlines() == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    found = answers_of(runs["paddle"], capsys)
    assert found.out.splitlines() == expected
    assert f"standard input: {said}" in found.err.splitlines(keepends=True)


def test_a_closed_standard_input_is_told(runs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed; allowed: a terminal"):
        answers_of(runs["paddle"], capsys)


def test_control_characters_of_the_text_are_printed_escaped(runs, questions, capsys):
    """A word of an answer may hold them: it is one of the text that was trained on."""
    trained, model, options = opened(runs["paddle"], input=questions)

    class Coloured:
        source_vocabulary = trained.words.source_vocabulary
        read = staticmethod(trained.words.read)

        @staticmethod
        def write(ids):
            return "\033[31m" + trained.words.write(ids) + "\u202e"

    plain = answers_of(runs["paddle"], capsys, input=questions).out.splitlines()
    converse(lambda: model, chat.Trained(trained.checkpoint, Coloured()), options)
    shown = capsys.readouterr().out.splitlines()
    assert shown == [f"\\x1b[31m{line}\\u202e" for line in plain]


@ONE_FRAMEWORK
def test_what_is_typed_can_be_edited_and_called_back(framework, runs, terminal):
    """And of two answers the one that the network is less sure of is followed by how sure."""
    trained, model, _ = opened(runs["tensorflow"])
    expected, sure = {}, {}
    for question in ("你 好", "猫 睡 好 吗"):
        ids = trained.words.read(question)
        (found,) = greedy_search(model, ids[None], np.array([len(ids)]), 7)
        expected[question] = trained.words.write(found.best.tokens)
        tokens = len(found.best.tokens) + found.best.finished
        sure[question] = np.exp(found.best.log_prob / tokens)
    (less, doubted), (more, _) = sorted((each, question) for question, each in sure.items())
    assert more - less > 0.01
    job = framework.chat(
        f"--checkpoint={runs['tensorflow']}",
        "--method=greedy",
        f"--confidence={(less + more) / 2}",
        terminal=terminal.name,
    )
    terminal.wait_for("> ")
    home, end, up = b"\x01", b"\x05", b"\x1b[A"  # Ctrl-A, Ctrl-E, the arrow up
    answered = r"\n[^\n]*\n[^\n]*> "
    terminal.type(" 睡 好".encode() + home + "猫".encode() + end + " 吗\n".encode())
    assert f"{expected['猫 睡 好 吗']}\r\n" in terminal.wait_for(answered)
    terminal.type("你 好\n".encode())
    assert f"{expected['你 好']}\r\n" in terminal.wait_for(answered)
    said = f"{expected[doubted]}\r\nnot sure: {less:.1%} per token, less than "
    assert said in terminal.seen
    assert terminal.seen.count("not sure") == 1
    terminal.type(up + up + b"\n")
    assert f"{expected['猫 睡 好 吗']}\r\n" in terminal.wait_for(answered)
    terminal.type(b"\n")
    status, _, _ = job.wait()
    assert status == 0


def test_a_picture_has_the_words_and_weights_of_the_best_answer(
    runs, questions, capsys, tmp_path, monkeypatch
):
    """What a picture shows of them is tested in test_training_image_files.py."""
    drawn, plot = [], chat.plot_attention

    def noted(pictures, path):
        drawn.extend(pictures)
        return plot(pictures, path)

    monkeypatch.setattr(chat, "plot_attention", noted)
    picture = tmp_path / "new" / "attention.png"
    said = answers_of(runs["paddle"], capsys, input=questions, attention_plot=picture).err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert said.endswith(f"{picture}: attention of {len(QUESTIONS)} answers is drawn\n")
    trained, model, _ = opened(runs["paddle"])
    found = beam_search(model, *asked(trained), 5, 0.6, 7)
    known = [question.replace("不认识", "<unk>").split() for question in QUESTIONS]
    assert [source for source, _, _ in drawn] == known
    for (source, target, weights), hypotheses in zip(drawn, found, strict=True):
        best = hypotheses.best
        assert target == [*trained.words.target_vocabulary.decode(best.tokens), "<eos>"]
        assert weights.shape == (len(target), len(source))
        np.testing.assert_allclose(weights.sum(axis=1), 1)
        np.testing.assert_array_equal(weights, best.weights[:, : len(source)])


# bad input


def _copied(folder, run):
    shutil.copytree(run, folder / "run")
    return folder / "run"


def _checkpoint(name, said):
    return lambda folder, run: ([f"--checkpoint={folder / name}"], f"{folder / name}: {said}")


def _language_model(folder, run):
    spec = small_spec()
    state = zero_state(spec, spec.training.batch_size)
    path = save_checkpoint(
        folder, Checkpoint(spec, 1, initial_snapshot(spec), state, "a" * 64, "paddle")
    )
    said = "a checkpoint of network 'language-model', which answers nothing; allowed: seq2seq"
    return [f"--checkpoint={path}"], f"{path}: {said}"


def _flag(flag, said):
    return lambda folder, run: ([f"--checkpoint={run}", flag], said)


def _input(content, said):
    def case(folder, run):
        path = folder / "questions.txt"
        path.write_bytes(content)
        words = [f"--checkpoint={run}", f"--input={path}", f"--output={folder / 'out' / 'a'}"]
        return words, f"{path}{said}"

    return case


def _other_vocabulary(folder, run):
    """Change a vocabulary in a copy of the run, which --vocabulary names."""
    place = _copied(folder, run) / "checkpoints"
    path = place / "target.vocabulary.txt"
    path.write_text(path.read_text().replace("的", "得"))
    said = f"{path}: does not fit the checkpoint: 13 lines with sha256 "
    return [f"--checkpoint={run}", f"--vocabulary={place}"], said


def _output_to_a_folder(folder, run):
    (folder / "questions.txt").write_text("你\n")
    words = [f"--checkpoint={run}", f"--input={folder / 'questions.txt'}"]
    return [*words, f"--output={folder}"], f"{folder}: is a folder; allowed: a file's name"


def _plot(name, count, said, *more):
    def case(folder, run):
        (folder / "questions.txt").write_text("你 好\n" * count)
        path = folder / name
        words = [f"--checkpoint={run}", f"--input={folder / 'questions.txt'}", *more]
        return [*words, f"--attention-plot={path}"], f"{path}{said}"

    return case


BAD = {
    "missing": _checkpoint("no", "no such checkpoint"),
    "none named": lambda folder, run: (
        [],
        "--checkpoint is missing; allowed: a checkpoint, or",
    ),
    "empty folder": _checkpoint(".", "holds no checkpoint"),
    "language model": _language_model,
    "escape characters in a flag": _flag("--no\033[31m", "No such option"),
    "escape characters in a question": _input(
        "你\n谁\033[31m\n".encode(), ":2: question '谁\\x1b[31m': none of its words"
    ),
    "a penalty without end": _flag(
        "--length-penalty=1e308", "--length-penalty is 1e+308; allowed: >= 0 and <= 10.0"
    ),
    "output alone": _flag("--output=a", "--output is 'a'; allowed: only with --input"),
    "empty lines": _input("\n \u3000\n".encode(), ": there is no question in it"),
    "no such input": _flag("--input=/no/such", "/no/such: no such file"),
    "output is a folder": _output_to_a_folder,
    "plot's ending": _plot(
        "a.txt", 1, ": not the name of a picture; allowed endings: pdf, png, svg"
    ),
    "plot of many": _plot("a.png", 17, ": a picture of 17 sentences; allowed: 16"),
    "plot of long ones": _plot(
        "a.png", 1, ": a picture of up to 101 tokens in a row; allowed: 100", "--longest=101"
    ),
    "other words": _other_vocabulary,
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("folder", FOLDERS.values())
def test_both_programs_refuse_it_in_one_line(runs, tmp_path, monkeypatch, capsys, folder, case):
    """Before they load a framework, so they can run in this very process."""
    words, said = BAD[case](tmp_path, runs["paddle"])
    before, loaded = sorted(tmp_path.rglob("*")), set(sys.modules)
    script = str(ROOT / folder / "chat.py")
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.setattr(sys, "path", [str(ROOT / folder), *sys.path])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(script, run_name="__main__")
    printed = capsys.readouterr()
    line = assert_one_line(caught.value.code, printed.err)
    assert line.isprintable(), "a terminal would obey it"
    assert printed.err == f"{line}\n"
    assert line.startswith(f"error: {said}")
    assert printed.out == ""
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"
    assert not {"paddle", "tensorflow"} & (set(sys.modules) - loaded)


def test_the_best_checkpoint_answers_unless_the_newest_is_asked_for(runs, tmp_path):
    folder = _copied(tmp_path, runs["paddle"]) / "checkpoints"
    (folder / "best.json").write_text('{"step": 54, "valid_perplexity": 1.0}')
    best = folder / "step-00000054.safetensors"
    found = [opened(tmp_path / "run", newest=each)[0] for each in (False, True)]
    assert [each.checkpoint.step for each in found] == [54, 60]
    assert [list(each.notes) for each in found] == [
        ["step 54, the best by validation (perplexity 1.000); --newest takes the newest"],
        ["step 60, the newest"],
    ]
    best.write_bytes(best.read_bytes()[:-9])
    trained = opened(tmp_path / "run")[0]
    assert trained.checkpoint.step == 60
    assert trained.notes[0].startswith(
        f"skipped the best checkpoint: {best}: not a whole safetensors file"
    )
