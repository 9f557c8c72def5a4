"""The rows of embedding tables whose gradients several processes have to sum.

A step reads few rows of a table, and the gradient of all others is zero. Processes tell each
other which rows they read, and then send nothing but those that any of them has.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters
from parity.twins.spec.spec import Spec


def table_rows(spec: Spec) -> dict[str, int]:
    """Return the number of rows of each embedding table, by the parameter's name."""
    tables = NETWORKS[spec.network].embeddings
    return {each.name: each.shape[0] for each in parameters(spec) if each.name in tables}


def mark_touched_rows(spec: Spec, feeds: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Mark the rows of embedding tables that some replicas read.

    Args:
      spec: the network, its text and its training.
      feeds: what each of these replicas is fed in a step.

    Returns:
      1 for each row that is read and 0 for all others: uint8 [rows of all tables], the tables
      in the order of `table_rows`.
    """
    tables, marks = NETWORKS[spec.network].embeddings, [np.zeros(0, np.uint8)]
    for name, rows in table_rows(spec).items():
        mark = np.zeros(rows, np.uint8)
        for feed in feeds:
            mark[feed[tables[name]]] = 1
        marks.append(mark)
    return np.concatenate(marks)
