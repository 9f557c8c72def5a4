"""How the rows of a batch are shared among replicas: one function for sides and oracle."""

from parity.base.errors import UsageError


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


def _shares(rows: int, count: int) -> list[int]:
    base, more = divmod(rows, count)
    return [base + 1] * more + [base] * (count - more)
