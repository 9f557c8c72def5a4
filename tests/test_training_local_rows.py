"""Each process of a training reads its own rows of a batch alone, and they are those of one."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import COLLECTIVE, STEPS, flags

from data.load import load_pair_text, load_stream_text
from data.text_batches import StreamBatches
from data.text_corpus import load_corpus
from parity.twins.launch.edited_source import Edit
from parity.twins.processes.gathering import local_rows
from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.initial import zero_state
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.spec.step_arrays import split_feeds, step_inputs
from parity.twins.training.checkpoint import load_checkpoint
from parity.twins.training.text_source import local_batch

# of processes and of replicas: they share 7 rows, or in other batches fewer
PROCESSES = [(2, 2), (3, 3), (2, 4), (4, 4)]
SPACES = {"source_segmenter": "spaces", "target_segmenter": "spaces"}
SETTINGS = {
    "stream": {"batching": "stream", "time": 5},
    "sentences": {"batching": "sentences", "time": 5},
    "pairs": {**SPACES, "bidirectional": False},
}


class Rank(ProcessGroup):
    """A process of several, without the others."""

    def __init__(self, rank: int, size: int):
        super().__init__()
        self.rank, self.size = rank, size


@pytest.fixture(params=SETTINGS)
def read(request, text, pairs, cache):
    """Return a spec with dropout of odd widths, and its text."""
    of_pairs = request.param == "pairs"
    name = "seq2seq" if of_pairs else "language-model"
    preset = NETWORKS[name].presets["tiny"]
    spec = Spec(name, preset.model, preset.text, TrainSpec(dtype="float64")).replace(
        batch_size=7, embedding_size=5, hidden_size=3, keep=0.7, **SETTINGS[request.param]
    )
    load, folder = (load_pair_text, pairs) if of_pairs else (load_stream_text, text)
    return spec, load(folder, cache, spec.values())


def inputs_of(spec, batches, step, group, replicas, train=True):
    """Return what a rank reads of a step."""
    return step_inputs(spec, step, local_batch(batches, step, group, replicas), train=train)


@pytest.mark.parametrize(("size", "replicas"), PROCESSES)
def test_the_rows_of_all_ranks_are_those_of_one_process(read, size, replicas):
    """With their masks, their padding, and what each knows of the whole batch."""
    spec, text = read
    for step in range(text.train.batches_per_epoch + 1):
        whole = inputs_of(spec, text.train, step, ProcessGroup(), replicas)
        parts = [
            inputs_of(spec, text.train, step, Rank(rank, size), replicas)
            for rank in range(size)
        ]
        for name, array in whole.batch.items():
            np.testing.assert_array_equal(
                np.concatenate([part.batch[name] for part in parts]), array
            )
        assert len(whole.masks) > 1
        for name, mask in whole.masks.items():
            np.testing.assert_array_equal(
                np.concatenate([part.masks[name] for part in parts]), mask
            )
        for part in parts:
            for name in ("rows", "num_tokens", "loss_divisor", "positions", "carry"):
                assert getattr(part, name) == getattr(whole, name), name
            for name in NETWORKS[spec.network].lengths.values():
                np.testing.assert_array_equal(part.lengths[name], whole.lengths[name])
            assert part.per_token(0.7) == whole.per_token(0.7)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("size", "replicas"), PROCESSES)
def test_a_replica_is_fed_the_same_in_any_number_of_processes(read, size, replicas, train):
    spec, text = read
    batches = text.train if train else text.valid
    for step in range(batches.batches_per_epoch):
        whole = inputs_of(spec, batches, step, ProcessGroup(), replicas, train)
        state = zero_state(spec, whole.rows)
        for array in state.values():
            array[...] = np.random.default_rng(step).random(array.shape)
        expected = split_feeds(spec, whole, state, replicas)
        for rank in range(size):
            group = Rank(rank, size)
            part = inputs_of(spec, batches, step, group, replicas, train)
            feeds = split_feeds(spec, part, state, replicas)
            own = group.own(replicas)
            assert len(feeds) == replicas
            assert [bool(feed) for feed in feeds] == [
                own.start <= i < own.stop for i in range(replicas)
            ]
            for mine, theirs in zip(feeds[own], expected[own], strict=True):
                assert mine.keys() == theirs.keys()
                for name, array in mine.items():
                    np.testing.assert_array_equal(array, theirs[name])


def logging_reads(folder: Path) -> Edit:
    """Return the edit that lets each process note which tokens it reads, in a file."""
    line = '        ids = np.frombuffer(content, dtype="<i4").astype(np.int32, copy=False)\n'
    note = (
        f'        with open("{folder}/%d" % os.getpid(), "a") as file:\n'
        '            file.write("%s %d %d\\n" % (self._tokens_path.name, start, stop))\n'
    )
    return Edit("data/text_corpus.py", line, note + line)


@pytest.fixture
def train(frameworks, cache, tmp_path):
    """Return a function that trains in several processes, and returns the folder of the run."""

    def run(framework, name, processes, edits=(), **given):
        folder = tmp_path / name
        values = {"steps": STEPS, "dtype": "float64", "cache": cache, "out": folder} | given
        values |= {"strategy": COLLECTIVE[framework], "replicas": processes}
        words = flags(**values, processes=processes)
        status, _, errors = frameworks[framework].train(*words, edits=edits).wait()
        assert status == 0, errors
        return folder

    return run


READS_ALL = Edit(
    "parity/twins/training/text_source.py", "if group is None or group.size == 1:", "if True:"
)


@pytest.mark.parametrize(
    "framework", ["paddle", pytest.param("tensorflow", marks=pytest.mark.thorough)]
)
def test_a_real_rank_reads_its_part_of_the_file_alone(train, text, cache, framework, tmp_path):
    """The rows of a continuous text are contiguous parts of it, and so are a rank's.

    If all ranks read all of them, no number changes: neither in losses.csv nor in a checkpoint
    nor in an evaluation.
    """
    (tmp_path / "log").mkdir()
    given = {"data": text, "batching": "stream", "optimizer": "adam"}
    own = train(framework, "own", 3, [logging_reads(tmp_path / "log")], **given)
    batches = StreamBatches(load_corpus(text, cache, 40).train, 7, 5)
    lengths = np.array([batches.batch(step).lengths for step in range(5)]).sum(axis=0)
    bounds = np.cumsum([0, *lengths]).tolist()
    parts = set()
    for log in (tmp_path / "log").iterdir():
        lines = [line.split() for line in log.read_text().splitlines()]
        train_lines = [(int(a), int(b)) for name, a, b in lines if name == "train.tokens"]
        if train_lines:
            parts.add((min(a for a, _ in train_lines), max(b for _, b in train_lines)))
    rows = [local_rows(Rank(rank, 3), 7, 3) for rank in range(3)]
    assert parts == {(bounds[each.start], bounds[each.stop] + 1) for each in rows}

    whole = train(framework, "all", 3, [READS_ALL], **given)
    assert (own / "losses.csv").read_bytes() == (whole / "losses.csv").read_bytes()
    last = Path("checkpoints", f"step-{STEPS:08}.safetensors")
    first, second = (load_checkpoint(folder / last) for folder in (own, whole))
    for name, array in (first.snapshot | dict(first.state)).items():
        other = (second.snapshot | dict(second.state))[name]
        assert array.tobytes() == other.tobytes(), name
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (own, whole)]
    assert summaries[0]["valid_perplexity"] == summaries[1]["valid_perplexity"] != []
