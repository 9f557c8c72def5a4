"""Two ranks of PyTorch or Paddle, each of which records itself, against one process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import parity
import parity.paddle
import parity.torch
from parity import Trace

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).resolve().parent.parent
ROWS, RANKS = 4, 2


def model_of():
    import torch

    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers).double()


def train(folder, model, rows):
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(2)
    with parity.torch.watch(folder, model, optimizer):
        for _ in range(3):
            x = torch.randn(ROWS, 4, generator=draw, dtype=torch.float64)
            optimizer.zero_grad()
            (model(x[rows]) ** 2).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()


def run_rank(rank, folder):
    """Train by DDP, by DDP that leaves one parameter out, and by FSDP2."""
    import torch.distributed as group
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    group.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    rows = slice(rank, None, RANKS)  # as a DistributedSampler deals them out
    train(folder / "ddp", DistributedDataParallel(model_of()), rows)
    wrong = model_of()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(wrong, ["2.bias"])
    train(folder / "left-out", DistributedDataParallel(wrong), rows)
    mesh = group.device_mesh.init_device_mesh("cpu", (RANKS,))
    sharded = model_of()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    train(folder / "fsdp", sharded, rows)
    group.destroy_process_group()


@pytest.mark.torch
def test_two_ranks_are_compared_with_one_process(tmp_path):
    from torch.multiprocessing import spawn

    spawn(run_rank, (tmp_path,), nprocs=RANKS)
    train(tmp_path / "one", model_of(), slice(None))
    assert Trace(tmp_path / "ddp" / "rank-1").header["facts"]["rank"] == 1
    for sharing in ("ddp", "fsdp"):
        report = parity.assert_match(tmp_path / "one", tmp_path / sharing)
        assert (report["dtype"], report["steps"], report["only"]) == ("float64", 3, {})
    with pytest.raises(AssertionError) as caught:
        parity.assert_match(tmp_path / "one", tmp_path / "left-out")
    told = " ".join(str(caught.value).split())
    assert "rank 1 differs from rank 0 in gradient/2.bias, step 0, of pytorch" in told


def train_paddle(folder, wrap, rows):
    import paddle

    paddle.seed(1)
    layers = paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 3)
    model = wrap(paddle.nn.Sequential(*layers).to(dtype="float64"))
    optimizer = paddle.optimizer.Adam(0.1, parameters=model.parameters())
    with parity.paddle.watch(folder, model, optimizer):
        for x in np.random.default_rng(1).normal(size=(3, ROWS, 4)):
            (model(paddle.to_tensor(x[rows])) ** 2).mean().backward()
            optimizer.step()
            optimizer.clear_grad()


def run_paddle_rank(folder):
    import paddle

    paddle.distributed.init_parallel_env()
    rows = slice(paddle.distributed.get_rank(), None, RANKS)
    train_paddle(folder / "two", paddle.DataParallel, rows)


def test_two_ranks_of_paddle_are_compared_with_one_process(tmp_path):
    # as a program: what it imports first, its ranks do, too
    done = subprocess.run(
        [sys.executable, __file__, tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = parity.assert_match(tmp_path / "one", tmp_path / "two")
    assert (report["dtype"], report["steps"], report["only"]) == ("float64", 3, {})


if __name__ == "__main__":
    from paddle.distributed import spawn

    spawn(run_paddle_rank, (Path(sys.argv[1]),), nprocs=RANKS, backend="gloo")
    train_paddle(Path(sys.argv[1]) / "one", lambda model: model, slice(None))
