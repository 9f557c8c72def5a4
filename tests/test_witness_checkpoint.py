"""Checkpoints read and written without the code that writes and reads them.

Either framework resumes from what the other wrote, through one shared module: an update saved
too late, or a state left out, would be so for both. Here the file is read by safetensors alone,
and its first bytes by hand.
"""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
from oracle_side import OracleStrategy, small_pairs_spec, small_spec, train_with
from safetensors.numpy import load_file, save_file

from parity.twins.cli.options import TrainOptions
from parity.twins.training.checkpoint import load_checkpoint

# the tensors of `small_spec`, written out: 7 words, width 3, two layers of 4 units, 5 rows
SHAPES = {
    "embed/table": (7, 3),
    "lstm_0/input_kernel": (3, 16),
    "lstm_0/recurrent_kernel": (4, 16),
    "lstm_0/bias": (16,),
    "lstm_1/input_kernel": (4, 16),
    "lstm_1/recurrent_kernel": (4, 16),
    "lstm_1/bias": (16,),
    "softmax/kernel": (4, 7),
    "softmax/bias": (7,),
}
EXPECTED = {
    **{f"weight/{name}": shape for name, shape in SHAPES.items()},
    **{
        f"optimizer/{name}/{slot}": shape
        for name, shape in SHAPES.items()
        for slot in ("m", "v")
    },
    "optimizer/beta1_power": (),
    "optimizer/beta2_power": (),
    "state/h": (5, 2, 4),
    "state/c": (5, 2, 4),
}


class Remembering(OracleStrategy):
    """Keeps weights, optimiser state and recurrent state after each step, from number 1 on."""

    def __init__(self, spec, build):
        super().__init__(spec, build)
        self.after = {}
        self.done = 0

    def step(self, inputs, state, learning_rate, record=False):
        result = super().step(inputs, state, learning_rate, record)
        if not state:  # of pairs, a side returns the encoder's, which is not carried
            result = dataclasses.replace(result, state={"h": np.ones((5, 2, 4))})
        self.done += 1
        states = {f"state/{name}": array for name, array in result.state.items()}
        self.after[self.done] = {name: a.copy() for name, a in (self.held | states).items()}
        return result


def train(out, spec, steps, **options):
    """Train some steps; return the strategy."""
    options = TrainOptions(out=out, replicas=2, threads=1, steps=steps, **options)
    return train_with(Remembering, spec, options)[0]


def newest(out):
    """Return the path of the checkpoint that `latest` names."""
    folder = out / "checkpoints"
    return folder / (folder / "latest").read_text().strip()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_checkpoint_holds_what_the_step_before_left(tmp_path, dtype):
    """After 6 steps: weights, slots and state of the sixth, and where to go on."""
    spec = small_spec(dtype=dtype)
    trained = train(tmp_path / "run", spec, 6)
    path = newest(tmp_path / "run")
    assert path.name == "step-00000006.safetensors"
    tensors = load_file(path)
    assert {name: array.shape for name, array in tensors.items()} == EXPECTED
    for name, array in tensors.items():
        assert array.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(array, trained.after[6][name], err_msg=name)
        assert (array != trained.after[5][name]).any(), name
    powers = tensors["optimizer/beta1_power"], tensors["optimizer/beta2_power"]
    # what update t = 7 divides by: beta^7, after 6 multiplications in the run's precision
    assert powers == pytest.approx((0.9**7, 0.999**7), rel=1e-6)


def test_the_file_is_plain_safetensors_with_the_run_as_metadata(tmp_path):
    """Eight bytes with the header's size, the header in JSON, then the tensors' bytes."""
    spec = small_spec(learning_rate=1 / 3)
    trained = train(tmp_path / "run", spec, 5)
    content = newest(tmp_path / "run").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    assert metadata["step"] == "5"
    assert metadata["framework"] == "numpy"
    assert metadata["corpus"] == "a" * 64
    stored = json.loads(metadata["spec"])
    assert stored["network"] == "language-model"
    assert stored["training"]["learning_rate"] == 1 / 3
    assert stored["model"]["num_layers"] == 2
    vocabulary = (tmp_path / "run" / "checkpoints" / "vocabulary.txt").read_bytes()
    assert json.loads(metadata["vocabularies"]) == {
        "vocabulary.txt": hashlib.sha256(vocabulary).hexdigest()
    }
    kinds = {"F64": "<f8", "F32": "<f4"}
    for name, entry in header.items():
        start, stop = (8 + size + offset for offset in entry["data_offsets"])
        array = np.frombuffer(content[start:stop], kinds[entry["dtype"]])
        np.testing.assert_array_equal(array.reshape(entry["shape"]), trained.after[5][name])


def test_pairs_have_no_state_to_store(tmp_path):
    train(tmp_path / "run", small_pairs_spec(), 3, evaluate=0)  # it has no questions
    tensors = load_file(newest(tmp_path / "run"))
    assert not [name for name in tensors if name.startswith("state/")]


def test_a_file_that_others_write_is_read_as_it_stands(tmp_path):
    """Other values, put into the file by safetensors, come back under their names."""
    train(tmp_path / "run", small_spec(), 6)
    path = newest(tmp_path / "run")
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header["__metadata__"]
    del metadata["sha256"]
    tensors = {
        name: np.asarray(np.arange(array.size).reshape(array.shape) + place, array.dtype)
        for place, (name, array) in enumerate(load_file(path).items())
    }
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode() + array.tobytes())
    save_file(tensors, path, metadata | {"sha256": digest.hexdigest()})
    read = load_checkpoint(path)
    assert read.step == 6
    found = dict(read.snapshot) | {f"state/{name}": array for name, array in read.state.items()}
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
