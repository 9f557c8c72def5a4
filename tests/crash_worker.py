"""Runs tasks, each in a forked child that may be stopped at its n-th change of a file.

Started with tests/crash.c preloaded. A request is a line of JSON: a task, its arguments, the
environment of its child, and a file for its stderr. The answer is the child's exit status.
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np

# what a training imports late, once for all children
import tensorboardX.event_file_writer
import tensorboardX.summary  # noqa: F401
from oracle_side import OracleStrategy, small_spec, text

from data.download import PublicCorpus, download
from data.load import load_pair_text, load_stream_text
from parity.base.errors import DEFECT_STATUS
from parity.cli.command_line import print_error
from parity.trace.writer import Writer
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.spec import preset
from parity.twins.training.start import Side, run_training

SPEC = small_spec(epochs=1)


def train(out: str, resume: bool, overwrite: bool = False) -> None:
    """Train four steps in NumPy, with a checkpoint after every second."""
    options = TrainOptions(
        out=Path(out),
        replicas=2,
        checkpoint_every=2,
        resume="" if resume else None,
        overwrite=overwrite,
    )
    run_training(Side(OracleStrategy, dict), text(SPEC), SPEC, options)


def encode(kind: str, folder: str, cache: str) -> None:
    """Encode a text, or find that done in the cache."""
    if kind == "text":
        spec = preset("language-model", "tiny").replace(batch_size=2, time=3)
        load_stream_text(Path(folder), Path(cache), spec.values())
    else:
        spec = preset("seq2seq", "tiny").replace(
            batch_size=3, source_segmenter="spaces", target_segmenter="spaces"
        )
        load_pair_text(Path(folder), Path(cache), spec.values())


def record(folder: str) -> None:
    """Write a trace of three steps."""
    header = {"framework": "numpy", "dtype": "float64", "run": {}, "tolerances": {}}
    writer = Writer(Path(folder), {**header, "versions": {}})
    for step in range(3):
        writer.step(step, {"loss/global": np.array(float(step)), "a": np.arange(9.0) * step})
    writer.close()


def fetch(address: str, hashes: dict[str, str], out: str) -> None:
    """Download the files of a corpus."""
    corpus = PublicCorpus("small", "none", hashes, (address,))
    download(corpus, Path(out))


TASKS = {each.__name__: each for each in (train, encode, record, fetch)}


def child(request: dict) -> int:
    os.environ.update(request["environment"])
    os.dup2(os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        TASKS[request["task"]](*request["arguments"])
    except Exception as error:  # noqa: BLE001 - what is no error of ours is a defect
        if hasattr(error, "exit_status"):
            return print_error(error, debug=False)
        traceback.print_exc()
        return DEFECT_STATUS
    return 0


def main() -> None:
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            status = DEFECT_STATUS
            try:
                status = child(json.loads(line))
            finally:
                sys.stderr.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
