"""Copies weights and optimiser state between framework variables and canonical arrays."""

import numpy as np

from parity.twins.spec.parameters import swap_layout


def load_snapshot(session, assignments, snapshot):
    """Write weights and optimiser state into the variables.

    Args:
      session: the session that runs the graph.
      assignments: snapshot name -> (placeholder, operation that assigns it).
      snapshot: snapshot name -> array in canonical layout.
    """
    feeds = {
        assignments[name][0]: to_framework(name, array) for name, array in snapshot.items()
    }
    session.run([assignments[name][1] for name in snapshot], feeds)


def read_snapshot(session, reads):
    """Return weights and optimiser state, snapshot name -> array in canonical layout.

    Args:
      session: the session that runs the graph.
      reads: snapshot name -> tensor that reads the variable which stores it.
    """
    values = session.run(reads)
    return {name: from_framework(name, value) for name, value in values.items()}


def to_framework(name, array):
    """Return a weight, gradient or slot in this framework's layout, given the canonical one."""
    return np.asarray(swap_layout("tensorflow", _parameter(name), array), order="C")


def from_framework(name, array):
    """Return a weight, gradient or slot in canonical layout, given this framework's."""
    return swap_layout("tensorflow", _parameter(name), np.asarray(array))


def _parameter(name):
    kind, path = name.split("/", 1)
    return path.rsplit("/", 1)[0] if kind == "optimizer" else path
