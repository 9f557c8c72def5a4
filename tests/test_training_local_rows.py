"""Each process of a training reads its own rows of a batch alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import COLLECTIVE, STEPS, ended, flags

from data.text_batches import StreamBatches
from data.text_corpus import load_corpus
from parity.twins.launch.edited_source import Edit
from parity.twins.processes.gathering import local_rows
from parity.twins.processes.group import ProcessGroup
from parity.twins.training.checkpoint import load_checkpoint


class Rank(ProcessGroup):
    """A process of several, without the others."""

    def __init__(self, rank: int, size: int):
        super().__init__()
        self.rank, self.size = rank, size


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
        ended(frameworks[framework].train(*words, edits=edits))
        return folder

    return run


READS_ALL = Edit(
    "parity/twins/processes/gathering.py", "if group is None or group.size == 1:", "if True:"
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
