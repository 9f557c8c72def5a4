"""What flows where in each strategy, on two replicas: a description, which `flows.py` draws."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from docs.pictures.flows import Arrow, Box, Flow, Lane
from parity.twins.spec.replicas import split_rows

_COLUMNS = ("left", "right")
_ROWS = 5  # of the global batch in every picture: two replicas do not get equally many
_ENGINE = ("all-reduce, by the engine", "g = g0 + g1, for each parameter")
_ONE_COPY = "one copy, and the optimiser state"


def _shares() -> list[str]:
    """Return the rows of each of two replicas, as `split_rows` divides them."""
    first, _ = split_rows(_ROWS, 2)
    return [f"rows 0–{first - 1}", f"rows {first}–{_ROWS - 1}"]


def _middle(name: str, kind: str, row: int, *lines: str) -> Box:
    return Box(name, kind, "middle", row, lines)


def _batch(*lines: str) -> Box:
    first, second = split_rows(_ROWS, 2)
    divided = "global batch", f"{_ROWS} rows: {first} + {second}"
    return _middle("batch", "data", 0, *lines or divided)


def _pair(name: str, kind: str, row: int, *lines: str) -> list[Box]:
    """Return a box in each lane; "{n}" in a line is the lane's number."""
    return [
        Box(f"{name}{n}", kind, column, row, tuple(line.format(n=n) for line in lines))
        for n, column in enumerate(_COLUMNS)
    ]


def _rows() -> list[Box]:
    return [
        Box(f"rows{n}", "data", column, 1, (rows, "padded to their longest"))
        for n, (column, rows) in enumerate(zip(_COLUMNS, _shares(), strict=True))
    ]


def _lanes(first: int, last: int, title: str) -> list[Lane]:
    return [Lane(column, first, last, title.format(n=n)) for n, column in enumerate(_COLUMNS)]


def _chain(kind: str, *names: str) -> list[Arrow]:
    """Return arrows in both lanes, from each name to the next."""
    return [
        Arrow(f"{start}{n}", f"{end}{n}", kind)
        for start, end in pairwise(names)
        for n in range(2)
    ]


def _both(kind: str, start: str, end: str) -> list[Arrow]:
    """Return arrows between a box of both lanes and one in the middle; "{n}" is the lane."""
    return [Arrow(start.format(n=n), end.format(n=n), kind) for n in range(2)]


def _read(start: str, end: str) -> list[Arrow]:
    """Return the arrows by which weights come back to the network of each lane."""
    return [
        Arrow(start.format(n=n), end.format(n=n), "weights", outside=column)
        for n, column in enumerate(_COLUMNS)
    ]


def _own_copies(read: str) -> list[Box]:
    """Return two workers that read the weights, and compute with the copies they have then."""
    boxes = []
    for n, (side, rows) in enumerate(zip(_COLUMNS, _shares(), strict=True)):
        copy = (f"own copy {n}", "as old as its read")
        boxes += [
            Box(f"read{n}", "exchange", f"outer {side}", 1, (read, "all weights at once")),
            Box(f"copy{n}", "weights", f"outer {side}", 2, copy),
            Box(f"forward{n}", "data", side, 3, ("forward pass", f"{rows}, with the own copy")),
        ]
    return boxes


def _with_copies(title: str, lane: str, *exchange: str) -> Flow:
    boxes = [
        _batch(),
        *_rows(),
        *_pair("forward", "data", 2, "forward pass", "with copy {n} of the weights"),
        *_pair("loss", "data", 3, "share of the loss", "own sum / tokens of the batch"),
        *_pair("back", "gradient", 4, "backward pass", "gradient g{n} of its share"),
        _middle("reduce", "exchange", 5, *exchange),
        *_pair("update", "gradient", 6, "clip g by its norm", "then update copy {n}"),
        *_pair("weights", "weights", 7, "weights, copy {n}", "and optimiser state"),
    ]
    arrows = [
        *_both("data", "batch", "rows{n}"),
        *_chain("data", "rows", "forward", "loss", "back"),
        *_both("gradient", "back{n}", "reduce"),
        *_both("gradient", "reduce", "update{n}"),
        *_chain("gradient", "update", "weights"),
        *_read("weights{n}", "forward{n}"),
    ]
    return Flow(title, boxes, arrows, [*_lanes(1, 4, lane), *_lanes(6, 7, lane)])


def _through_one_copy(*chain: str) -> list[Arrow]:
    """Return the arrows of replicas that share the weights, whose gradients are combined."""
    return [
        *_both("data", "batch", "rows{n}"),
        *_chain("data", "rows", "forward", "loss", *chain),
        *_both("gradient", "back{n}", "reduce"),
        Arrow("reduce", "update", "gradient"),
        Arrow("update", "weights", "gradient"),
        *_read("weights", "forward{n}"),
    ]


def _one_update(row: int) -> list[Box]:
    """Return what follows the combined gradient, where the replicas share the weights."""
    return [
        _middle("update", "gradient", row, "clip g by its norm", "then one update"),
        _middle("weights", "weights", row + 1, "weights", _ONE_COPY),
    ]


def parallel_executor() -> Flow:
    """Return the flow of Paddle's `parallel-executor`, with fast kernels on a CPU."""
    boxes = [
        _batch(),
        *_rows(),
        *_pair("forward", "data", 2, "forward pass", "with the shared weights"),
        *_pair("loss", "data", 3, "share of the loss", "own sum / tokens of the batch"),
        *_pair("back", "gradient", 4, "backward pass", "gradient g{n} of its share"),
        _middle("reduce", "exchange", 5, *_ENGINE),
        *_one_update(6),
    ]
    title = "parallel-executor: two replicas, which share the weights"
    return Flow(title, boxes, _through_one_copy("back"), _lanes(1, 4, "replica {n}: scope {n}"))


def parallel_do() -> Flow:
    """Return the flow of Paddle's `parallel-do`."""
    boxes = [
        _batch(),
        *[
            Box(f"rows{n}", "data", column, 1, ("pd.read_input", f"{rows} of x and y"))
            for n, (column, rows) in enumerate(zip(_COLUMNS, _shares(), strict=True))
        ],
        *_pair("forward", "data", 2, "network(x_, y_)", "with the shared weights"),
        *_pair("loss", "data", 3, "pd.write_output", "share of the loss"),
        *_pair("sum", "data", 4, "paddle.sum(pd())", "on its own share: L{n}"),
        *_pair("back", "gradient", 5, "backward pass", "gradient g{n} of its share"),
        _middle("reduce", "exchange", 6, *_ENGINE),
        *_one_update(7),
    ]
    lanes = [*_lanes(1, 3, "with pd.do(), place {n}"), *_lanes(4, 5, "place {n}")]
    title = "parallel-do: a block of the program on two places"
    return Flow(title, boxes, _through_one_copy("sum", "back"), lanes, "between places")


def towers() -> Flow:
    """Return the flow of TensorFlow's `towers`."""
    boxes = [
        _batch("global batch", "fed whole, split in the graph"),
        *_rows(),
        *_pair("forward", "data", 2, "forward pass", "with the shared variables"),
        *_pair("loss", "data", 3, "share of the loss", "own sum / tokens of the batch"),
        _middle("sum", "exchange", 4, "sum of the losses", "L = L0 + L1, differentiated once"),
        *_pair("back", "gradient", 5, "backward pass", "on the tower’s device"),
        _middle("reduce", "exchange", 6, "added up, for each variable", "g = g0 + g1"),
        *_one_update(7),
    ]
    arrows = [
        *_both("data", "batch", "rows{n}"),
        *_chain("data", "rows", "forward", "loss"),
        *_both("data", "loss{n}", "sum"),
        *_both("gradient", "sum", "back{n}"),
        *_both("gradient", "back{n}", "reduce"),
        Arrow("reduce", "update", "gradient"),
        Arrow("update", "weights", "gradient"),
        *_read("weights", "forward{n}"),
    ]
    lanes = [*_lanes(1, 3, "tower {n}"), *_lanes(5, 5, "tower {n}")]
    title = "towers: one graph with two towers, which share the variables"
    return Flow(title, boxes, arrows, lanes, "between towers")


def average_gradients() -> Flow:
    """Return the flow of TensorFlow's `average-gradients`."""
    average = (
        "weighted average",
        "tokens: g = (n0 g0 + n1 g1) / (n0 + n1)",
        "equal: g = (g0 + g1) / 2",
    )
    boxes = [
        _batch("global batch", "fed whole, split in the graph"),
        *_rows(),
        *_pair("forward", "data", 2, "forward pass", "with the shared variables"),
        *_pair("loss", "data", 3, "mean loss", "over its own n{n} tokens"),
        *_pair("back", "gradient", 4, "backward pass", "gradient g{n} of its mean loss"),
        _middle("reduce", "exchange", 5, *average),
        *_one_update(6),
    ]
    title = "average-gradients: two towers, each differentiated by itself"
    lanes = _lanes(1, 4, "tower {n}")
    return Flow(title, boxes, _through_one_copy("back"), lanes, "between towers")


def layers() -> Flow:
    """Return the flow of `layers` through the two stages of one replica."""
    summed = "sum over the replicas, if several", "clipped by the norm over all stages"
    boxes = [
        _batch("rows of the replica, in micro-batches", "each stage gets what it reads"),
        *_pair("forward", "data", 1, "forward pass", "its layers, one micro-batch"),
        Box("loss", "data", "right", 2, ("share of the loss", "own sum / tokens of the batch")),
        *_pair("back", "gradient", 3, "backward pass", "with the kept activations"),
        *_pair("sum", "gradient", 4, "sum of the gradients", "of all micro-batches"),
        _middle("reduce", "exchange", 5, *summed),
        _middle("weights", "weights", 6, "one update of the weights", _ONE_COPY),
    ]
    arrows = [
        *_both("data", "batch", "forward{n}"),
        Arrow("forward0", "forward1", "data"),
        Arrow("forward1", "loss", "data"),
        Arrow("loss", "back1", "data"),
        Arrow("back1", "back0", "gradient"),
        *_chain("gradient", "back", "sum"),
        *_both("gradient", "sum{n}", "reduce"),
        Arrow("reduce", "weights", "gradient"),
        *_read("weights", "forward{n}"),
    ]
    lanes = [
        Lane("left", 1, 4, "stage 0: first layers"),
        Lane("right", 1, 4, "stage 1: last layers"),
    ]
    return Flow("layers: one replica whose layers are on two devices", boxes, arrows, lanes)


def hybrid() -> Flow:
    """Return the flow of `layers` on two replicas of two stages."""
    clipped = "g = g0 + g1, clipped by its norm"
    boxes = [
        _batch(),
        *_rows(),
        *_pair("first", "data", 2, "stage 0", "forward and backward pass"),
        *_pair("last", "data", 3, "stage 1", "forward and backward pass"),
        *_pair("sum", "gradient", 4, "gradient g{n}", "of both stages, all micro-batches"),
        _middle("reduce", "exchange", 5, "sum of the replicas", clipped),
        _middle("weights", "weights", 6, "one update of the weights", _ONE_COPY),
    ]
    arrows = [
        *_both("data", "batch", "rows{n}"),
        *_chain("data", "rows", "first"),
        *[Arrow(f"first{n}", f"last{n}", "data", shift=-24) for n in range(2)],
        *[Arrow(f"last{n}", f"first{n}", "gradient", shift=24) for n in range(2)],
        *_chain("gradient", "last", "sum"),
        *_both("gradient", "sum{n}", "reduce"),
        Arrow("reduce", "weights", "gradient"),
        *_read("weights", "first{n}"),
        *_read("weights", "last{n}"),
    ]
    title = "layers with two replicas of two stages each: four devices"
    return Flow(title, boxes, arrows, _lanes(1, 4, "replica {n}: two devices"))


def asynchronous() -> Flow:
    """Return the flow of `asynchronous`."""
    boxes = [
        _batch(),
        *_own_copies("lock: read"),
        *_pair("loss", "data", 4, "mean loss", "over its own n{n} tokens"),
        *_pair("back", "gradient", 5, "backward pass", "g{n}, clipped by its norm"),
        *_pair("lock", "exchange", 6, "lock: update", "with g{n} alone, when it is ready"),
        _middle("weights", "weights", 7, "shared weights", "and one optimiser state"),
    ]
    arrows = [
        *_both("data", "batch", "forward{n}"),
        *_chain("weights", "read", "copy", "forward"),
        *_chain("data", "forward", "loss", "back"),
        *_chain("gradient", "back", "lock"),
        *_both("gradient", "lock{n}", "weights"),
        *_read("weights", "read{n}"),
    ]
    title = "asynchronous: two workers, which do not wait for each other"
    return Flow(
        title, boxes, arrows, _lanes(1, 6, "worker {n}: a thread"), "one worker at a time"
    )


def parameter_server() -> Flow:
    """Return the flow of `parameter-server`."""
    boxes = [
        _batch(),
        *_own_copies("pull"),
        *_pair("back", "gradient", 4, "backward pass", "g{n}, clipped by its norm"),
        *_pair("push", "exchange", 5, "push", "g{n} alone, when it is its turn"),
        *_pair("weights", "weights", 6, "some of the weights", "and their optimiser state"),
    ]
    arrows = [
        *_both("data", "batch", "forward{n}"),
        *_chain("weights", "read", "copy", "forward"),
        *_chain("data", "forward", "back"),
        *_chain("gradient", "back", "push"),
        *_to_all("gradient", "push", "weights"),
        *_read("weights{n}", "read{n}"),
    ]
    lanes = [*_lanes(1, 5, "process {n}, worker {n}"), *_lanes(6, 6, "server {n}")]
    title = "parameter-server: two workers and two servers; the chief tells whose turn it is"
    return Flow(title, boxes, arrows, lanes, "between processes")


def parameter_server_sync() -> Flow:
    """Return the flow of `parameter-server-sync`."""
    boxes = [
        _batch(),
        *_rows(),
        *_pair("forward", "data", 2, "forward pass", "with the servers’ weights"),
        *_pair("loss", "data", 3, "share of the loss", "own sum / tokens of the batch"),
        *_pair("back", "gradient", 4, "backward pass", "gradient g{n} of its share"),
        *_pair("sum", "exchange", 5, "g0, then g1, added", "for its parameters"),
        *_pair("update", "gradient", 6, "clip by the norm of all", "then update"),
        *_pair("weights", "weights", 7, "some of the weights", "and their optimiser state"),
    ]
    arrows = [
        *_both("data", "batch", "rows{n}"),
        *_chain("data", "rows", "forward", "loss", "back"),
        *_to_all("gradient", "back", "sum"),
        *_chain("gradient", "sum", "update", "weights"),
        *_read("weights{n}", "forward{n}"),
    ]
    lanes = [*_lanes(1, 4, "process {n}, rank {n}"), *_lanes(5, 7, "server {n}")]
    title = "parameter-server-sync: two ranks, whose gradients two servers add up"
    return Flow(title, boxes, arrows, lanes, "between processes")


def _to_all(kind: str, start: str, end: str) -> list[Arrow]:
    """Return arrows from a box of each lane to a box of both lanes."""
    return [Arrow(f"{start}{n}", f"{end}{m}", kind) for n in range(2) for m in range(2)]


FLOWS: dict[str, Callable[[], Flow]] = {
    "parallel-executor": parallel_executor,
    "parallel-do": parallel_do,
    "towers": towers,
    "average-gradients": average_gradients,
    "mirrored": partial(
        _with_copies,
        "mirrored: strategy.run on two replicas, each with a copy of the variables",
        "strategy.run, replica {n}",
        *("all_reduce(SUM)", "g = g0 + g1, for each variable"),
    ),
    "data-parallel": partial(
        _with_copies,
        "data-parallel: two processes, each with a copy of the weights",
        "process {n}, rank {n}",
        *("all_reduce, over the network", "g = g0 + g1, and the losses"),
    ),
    "multi-worker": partial(
        _with_copies,
        "multi-worker: strategy.run in two processes, each with a copy of the variables",
        "process {n}, worker {n}",
        *("all_reduce(SUM), over a ring", "g = g0 + g1, and the losses"),
    ),
    "horovod": partial(
        _with_copies,
        "horovod: two processes, each with a graph and variables of its own",
        "process {n}, rank {n}",
        *("op=hvd.Sum, over a ring", "g = g0 + g1, for each parameter"),
    ),
    "parameter-server": parameter_server,
    "parameter-server-sync": parameter_server_sync,
    "layers": layers,
    "hybrid": hybrid,
    "asynchronous": asynchronous,
}
