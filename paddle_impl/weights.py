"""Copies weights and optimiser state between framework variables and canonical arrays."""

import numpy as np

from parity.twins.spec.parameters import swap_layout


def load_snapshot(executor_scopes, places, variables, snapshot):
    """Write weights and optimiser state into the variables.

    Args:
      executor_scopes: the scope of each replica.
      places: the place of each replica.
      variables: snapshot name -> names of the variables that store it.
      snapshot: snapshot name -> array in canonical layout.
    """
    for scope, place in zip(executor_scopes, places, strict=True):
        for name, array in snapshot.items():
            value = to_framework(name, array)
            for variable in variables[name]:
                tensor = scope.var(variable).get_tensor()
                tensor.set(value.reshape(tensor.shape()), place)


def read_snapshot(scope, variables):
    """Return weights and optimiser state, snapshot name -> array in canonical layout.

    Args:
      scope: the scope of one replica.
      variables: snapshot name -> names of the variables that store it.
    """
    return {
        name: from_framework(name, np.array(scope.find_var(stored[0]).get_tensor()))
        for name, stored in variables.items()
    }


def to_framework(name, array):
    """Return a weight, gradient or slot in this framework's layout, given the canonical one."""
    return np.asarray(swap_layout("paddle", _parameter(name), array), order="C")


def from_framework(name, array):
    """Return a weight, gradient or slot in canonical layout, given this framework's."""
    array = swap_layout("paddle", _parameter(name), array)
    return array.reshape(()) if name.endswith("_power") else array


def _parameter(name):
    kind, path = name.split("/", 1)
    return path.rsplit("/", 1)[0] if kind == "optimizer" else path
