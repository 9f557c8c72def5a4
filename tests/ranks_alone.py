"""Three ranks without an engine, for tests/test_processes.py, which says what they do."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from parity.base.errors import UsageError
from parity.cli.command_line import print_error
from parity.twins.cli.options import TrainOptions
from parity.twins.processes import connected_group, remote
from parity.twins.processes import group as step_limits
from parity.twins.processes.gathering import (
    distances_of_replicas,
    gather_parts,
    gather_state,
    state_of_local_rows,
)
from parity.twins.spec.strategies import StrategyEntry, StrategySettings, Traits
from parity.twins.training.process_group import process_group

SIZE, REPLICAS, ROWS = 3, 6, 8  # the replicas have 2, 2, 1, 1, 1 and 1 rows
ENTRY = StrategyEntry("alone", "", "", Traits(processes=True), optional_settings=("processes",))
SERVED = StrategyEntry(
    *("served", "", ""),
    Traits(processes=True, serves=("ps",)),
    StrategySettings(servers=2),
    optional_settings=("processes",),
)


def exchange(group) -> str:
    """Exchange arrays in every way that there is; return what rank 0 has of them."""
    own = np.full((2, 3), float(group.rank))
    gathered = group.gather({"own/a": own, "empty": np.zeros(0)})
    every = group.all_gather({"rank": np.array(group.rank)})
    sent = group.broadcast({"of rank 0": np.arange(3)} if group.rank == 0 else None)
    parts = gather_parts(group, {"loss": [np.array([2.0 * group.rank + i]) for i in range(2)]})
    rows = [[0, 1, 2, 3], [4, 5], [6, 7]][group.rank]
    halves = [np.array(rows[: len(rows) // 2]), np.array(rows[len(rows) // 2 :])]
    state = state_of_local_rows(group, {"h": halves}, ROWS, REPLICAS)
    whole = gather_state(group, state, REPLICAS)
    copies = [{"w": np.ones(2), "b": np.zeros(2)} for _ in range(2)]
    if group.rank == 2:
        copies[1]["b"][1] = -0.5
    distances = distances_of_replicas(group, copies)
    group.barrier()
    return repr(
        {
            "gathered": gathered and [float(each["own/a"].mean()) for each in gathered],
            "ranks": [int(each["rank"]) for each in every],
            "sent": sent["of rank 0"].tolist(),
            "parts": parts and [part.item() for part in parts["loss"]],
            "state": state["h"].tolist(),
            "whole": whole and whole["h"].tolist(),
            "distances": {name: each.tolist() for name, each in distances.items()},
            "own": [group.own(REPLICAS).start, group.own(REPLICAS).stop],
        }
    )


def count_signals(group) -> None:
    """Print how often each rank is sent SIGTERM."""
    came = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    group.barrier()
    if group.rank == 0:
        print("ready", flush=True)
    while not came:
        time.sleep(0.01)
    time.sleep(1)  # for a second one
    counts = group.gather({"count": np.array(len(came))})
    if counts is not None:
        print([int(each["count"]) for each in counts])


def act(group, mode: str) -> None:
    """Join the group and do what a mode says."""
    facts = {"text": "abc", "seed": "1"}
    if mode == "another seed" and group.rank == 2:
        facts["seed"] = "2"
    if mode == "dead before" and group.rank == 1:
        os._exit(9)
    if mode == "stopped before the meeting":
        signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getppid(), 15))
        signal.setitimer(signal.ITIMER_REAL, 1 if group.rank == 0 else 0)
        time.sleep(30)
    if mode == "gone while others come":
        if group.rank == 2:
            time.sleep(2)
        if group.rank == 1:
            signal.setitimer(signal.ITIMER_REAL, 1)  # ends it as soon as it has come
    if mode == "a server dead before" and group.job == "ps" and group.index == 1:
        os._exit(9)
    group.join(facts)
    if mode == "a server killed" and group.job == "ps" and group.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if group.serves:
        group.await_end()
        return
    if mode == "served":
        found = exchange(group)
        if group.rank == 0:
            print(found)
            print([group.size, group.workers, len(group.served["ps"])])
        return
    if mode == "exchange":
        found = exchange(group)
        if group.rank == 0:
            print(found)
    if mode == "counts signals":
        count_signals(group)
        return
    if mode == "killed" and group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "rank 0 killed" and group.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "stopped" and group.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    while mode == "stopped while much is sent":
        group.broadcast({"much": np.zeros(1 << 20)} if group.rank == 0 else None)
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
    if mode == "stands while its engine starts":
        with group.steps.start():
            ctypes.PyDLL(None).sleep(60)  # in C, where no thread of Python runs
    if mode == "stands in a step":
        with group.steps.step():
            group.barrier()
        time.sleep(3)  # between steps: as long as it needs
        with group.steps.step():
            time.sleep(60 if group.rank == 1 else 0)
    if mode == "nonsense" and group.rank == 1:
        group._others[0].send(b"T", b"no archive")
    if mode == "refused" and group.rank == 1:
        raise UsageError("the disk is full")
    if mode == "left alone by gloo":  # what its all_reduce raises on every rank
        raise RuntimeError(
            "[/paddle/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:83] TIMEOUT "
            "self_rank = none pair_rank = -1 peer_str = none"
        )
    if mode == "left alone by gRPC":  # as `tf.errors.InternalError` says it, among more lines
        raise RuntimeError(
            "2 root error(s) found.\n  (0) INTERNAL: Unable to parse request\n:UNKNOWN:Error "
            'received from peer  {grpc_status:13, grpc_message:"Unable to parse request"}\n'
            "  (1) CANCELLED: RecvFromRemoteAsync is cancelled."
        )
    if mode == "tells its network":
        if group.rank == 0:
            print(str(Path("/proc/self/ns/net").readlink()), os.environ["PARITY_MEETING"])
        return
    if mode == "warns":
        return
    if mode == "stays":
        group.barrier()
        if group.rank == 0:
            print("ready", flush=True)
    if mode != "exchange":
        time.sleep(60)  # as in an engine that waits for ever


def main() -> int:
    """Run three ranks, on the hosts of a file if one is given, and return the exit status."""
    connected_group.MEETING_SECONDS, connected_group.SILENT_SECONDS = 4.0, 3.0
    if sys.argv[1] == "stands while its engine starts":
        step_limits._FIRST = 1.0
    hosts, restarts = None, 0
    if len(sys.argv) > 2:
        hosts, restarts = Path(sys.argv[2]), int(sys.argv[3])
        connected_group.MEETING_SECONDS = 40.0  # a new interpreter takes a while
        remote.ANSWER_SECONDS = float(os.environ.get("ANSWER_SECONDS", "40"))
    entry = SERVED if "serve" in sys.argv[1] else ENTRY
    options = TrainOptions(
        settings=entry.settings(StrategySettings(processes=SIZE)),
        replicas=REPLICAS,
        max_restarts=restarts,
        hosts=hosts,
        i_trust_this_network="warns" not in sys.argv[1],
        stall_seconds=2.0,
    )
    try:
        with process_group("paddle", entry, options) as group:
            act(group, sys.argv[1])
    except Exception as error:  # noqa: BLE001 - raised again, if it is a defect
        return print_error(error, debug=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
