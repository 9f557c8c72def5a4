"""What can be known of `--device gpu` without a GPU, in the environment of `make gpu`."""

import json
import mmap
import struct
import subprocess
from collections import Counter

import pytest

from parity.twins.launch.processes import ROOT
from parity.twins.spec import gpus
from parity.twins.spec.frameworks import FRAMEWORKS

pytestmark = [pytest.mark.gpu, pytest.mark.thorough]

FAT = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # the header's mark, version and size
PYTHON = ROOT / ".venv-gpu" / "bin" / "python"
FLAGS = ("--preset=tiny", "--steps=5", "--replicas=2", "--threads=1")
# What is left to processors: Paddle copies there what is fetched, and TensorFlow has no kernel
# for this loss in float64 on GPUs.
ELSEWHERE = {
    ("paddle", "float32"): {"fetch_v2"},
    ("paddle", "float64"): {"fetch_v2"},
    ("tensorflow", "float64"): {"SparseSoftmaxCrossEntropyWithLogits"},
}


def run(python, *words, **options):
    words = [python, *map(str, words)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, **options)


@pytest.mark.parametrize("kernels", ["fast", "plain"])
@pytest.mark.parametrize("network", ["language-model", "seq2seq"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_operation_has_a_kernel_for_gpus(tmp_path, framework, network, kernels):
    flags = (*FLAGS, f"--network={network}", f"--kernels={kernels}", "--optimizer=adam")
    code = (
        "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = ("tests/gpu_kernels.py", framework, *flags, f"--out={tmp_path / 'run'}")
    done = run(PYTHON, "-W", "ignore", "-c", code, *script)
    assert done.returncode == 0, done.stderr
    count, lacking = json.loads(done.stdout)
    assert count > 40
    for dtype, kinds in lacking.items():
        assert {*kinds} <= ELSEWHERE.get((framework, dtype), set())


def test_paddle_has_device_code_for_these_gpus_alone():
    (library,) = PYTHON.parent.parent.glob("lib/python3*/site-packages/paddle/libs/libphi.so")
    sizes = Counter()
    with library.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for binary, architecture, size in device_code(data):
            sizes[binary, architecture // 10, architecture % 10] += size
    # NCCL, which is linked into it, brings a little for all
    held = {each for each, size in sizes.items() if size > sizes.total() / 100}
    assert held == {(True, *each) for each in gpus.OF_PADDLE}


def device_code(data):
    """Yield (is it a binary, or code to compile; architecture; bytes) of CUDA's "fat binaries".

    Each has a header of 16 bytes, and before each piece of code one that begins with its kind
    (2: a binary), and has the piece's size at 8 and its architecture at 28.
    """
    at = data.find(FAT)
    while at >= 0:
        end = at + 16 + struct.unpack_from("<Q", data, at + 8)[0]
        at += 16
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            yield kind == 2, *struct.unpack_from("<I", data, at + 28), size
            at += header + size
        at = data.find(FAT, end)


def test_paddle_opens_its_cudnn():
    code = "import paddle; print(paddle.device.get_cudnn_version())"
    assert run(PYTHON, "-W", "ignore", "-c", code).stdout == "8906\n"


@pytest.mark.parametrize("folder", ["paddle_impl", "tf_impl"])
def test_processors_train_to_the_same_bits(tmp_path, folder):
    losses = []
    for python in (PYTHON, ROOT / ".venv" / "bin" / "python"):
        out = tmp_path / str(len(losses))
        done = run(python, f"{folder}/train.py", *FLAGS, f"--out={out}")
        assert done.returncode == 0, done.stderr
        losses.append((out / "losses.csv").read_bytes())
    assert losses[0] == losses[1]


@pytest.mark.parametrize("folder", ["paddle_impl", "tf_impl"])
def test_without_a_gpu_there_is_one_line(tmp_path, folder):
    out = f"--out={tmp_path / 'run'}"
    given = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = run(PYTHON, f"{folder}/train.py", *FLAGS, "--device=gpu", out, env=given)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "error: --device is 'gpu', but no GPU is found"
    )
    assert "Traceback" not in done.stderr
