"""Each process of a training reads its own rows of a batch alone."""

from pathlib import Path

import numpy as np
from conftest import COLLECTIVE, ONE_FRAMEWORK, STEPS, ended, flags

from data.text_batches import StreamBatches
from data.text_corpus import load_corpus
from parity.twins.launch.edited_source import Edit
from parity.twins.processes.gathering import local_rows
from parity.twins.processes.group import ProcessGroup


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


@ONE_FRAMEWORK
def test_a_real_rank_reads_its_part_of_the_file_alone(framework, text, cache, tmp_path):
    """The rows of a continuous text are contiguous parts of it, and so are a rank's.

    If all ranks read all of them, no number would change.
    """
    (tmp_path / "log").mkdir()
    given = {"data": text, "cache": cache, "batching": "stream", "steps": STEPS}
    given |= {"strategy": COLLECTIVE[framework.framework], "replicas": 3, "processes": 3}
    words = flags(**given, out=tmp_path / "run")
    ended(framework.train(*words, edits=[logging_reads(tmp_path / "log")]))
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
