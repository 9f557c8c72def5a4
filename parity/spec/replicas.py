"""How the rows of a batch are shared among replicas: one function for sides and oracle."""

from parity.base.errors import UsageError


def split_rows(rows: int, replicas: int) -> list[int]:
    """Return how many rows each replica gets; no row is dropped.

    The first `rows % replicas` replicas get one row more than the others. Rows keep their
    order.

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
    base, more = divmod(rows, replicas)
    return [base + 1] * more + [base] * (replicas - more)
