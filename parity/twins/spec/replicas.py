"""How the rows of a batch are shared among replicas: one function for sides and oracle."""

import os

from parity.base.errors import UsageError

# TF32 rounds what is multiplied to 10 bits, more than any bound here allows for.
_ON_GPUS = {
    "NVIDIA_TF32_OVERRIDE": "0",  # of cuBLAS and cuDNN, in either engine
    "FLAGS_cudnn_deterministic": "1",  # Paddle
    "TF_DETERMINISTIC_OPS": "1",  # TensorFlow
}


def split_rows(rows: int, replicas: int, micro_batches: int = 1) -> list[int]:
    """Return how many rows each replica gets, or each of its micro-batches; no row is dropped.

    The first `rows % replicas` replicas get one row more than the others. Rows keep their
    order. A replica's rows are divided among its micro-batches in the same way, but if it has
    fewer rows than micro-batches, the last of these are empty.

    Args:
      rows: the number of rows in the global batch.
      replicas: the number of replicas.
      micro_batches: the number of micro-batches of each replica.

    Returns:
      The number of rows of each micro-batch, [replicas * micro_batches]: first all those of
      replica 0, then all those of replica 1.

    Raises:
      UsageError: if a replica would get no row.
    """
    if replicas < 1:
        raise UsageError(f"--replicas is {replicas}; allowed: >= 1")
    if rows < replicas:
        raise UsageError(
            f"a batch of {rows} rows cannot be shared by {replicas} replicas; "
            f"allowed: --replicas <= {rows}"
        )
    return [
        size
        for rows_of_replica in _shares(rows, replicas)
        for size in _shares(rows_of_replica, micro_batches)
    ]


def check_gpus(replicas: int, stages: int, found: int) -> None:
    """Check that there is a GPU for each stage of each replica.

    Args:
      replicas: the number of replicas.
      stages: the number of devices of each replica.
      found: the number of GPUs.

    Raises:
      UsageError: if there are fewer GPUs than needed.
    """
    if not found:
        raise UsageError("--device is 'gpu', but no GPU is found; allowed: cpu")
    if replicas * stages > found:
        names = ", ".join(f"gpu:{i}" for i in range(found))
        most = found // stages
        at_stages = f" at --stages {stages}" if stages > 1 else ""
        raise UsageError(
            f"--replicas is {replicas}{at_stages}, but there are {found} GPUs ({names}); "
            f"allowed: {f'1 to {most}' if most else 'fewer stages'}, or --device cpu"
        )


def _shares(rows: int, count: int) -> list[int]:
    base, more = divmod(rows, count)
    return [base + 1] * more + [base] * (count - more)


def compute_exactly_on_gpus() -> None:
    """Let NVIDIA's libraries take float32 as it is, and both engines repeat their sums.

    Engines read these variables as they are loaded; a user's own values stay.
    """
    for name, value in _ON_GPUS.items():
        os.environ.setdefault(name, value)


def settings_on_gpus() -> dict[str, str]:
    """Return what of that is set, for the record."""
    return {name: os.environ[name] for name in _ON_GPUS if name in os.environ}
