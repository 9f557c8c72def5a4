"""Initial weights and optimiser state, made once in NumPy and loaded into every side."""

import numpy as np

from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters, snapshot_shapes
from parity.twins.spec.spec import Spec


def initial_snapshot(spec: Spec) -> dict[str, np.ndarray]:
    """Draw the weights from the seed, and return them with the optimiser's initial state.

    Every parameter, biases included, is uniform in [-initial_scale, initial_scale) around its
    mean: a bias of zeros would hide a gate order that is wrong in the bias alone.

    Returns:
      Canonical name -> array in the run's dtype. The weights are drawn in float64 and rounded,
      so a float32 run starts from the rounded weights of the float64 run.

    Source: Zaremba et al. 2014, section 4.1.
    """
    dtype = np.dtype(spec.training.dtype)
    scale = spec.model.initial_scale
    drawn = {}
    for index, parameter in enumerate(parameters(spec)):
        # one random stream per parameter: adding a parameter changes no other one's values
        generator = np.random.Generator(np.random.PCG64([spec.training.seed, index]))
        values = generator.random(parameter.shape)
        drawn[f"weight/{parameter.name}"] = (parameter.mean + (2 * values - 1) * scale).astype(
            dtype
        )
    starts = {"beta1_power": spec.training.beta1, "beta2_power": spec.training.beta2}
    return {
        name: drawn[name]
        if name in drawn
        else np.full(shape, starts.get(name.split("/")[-1], 0.0), dtype)
        for name, shape in snapshot_shapes(spec).items()
    }


def zero_state(spec: Spec, rows: int) -> dict[str, np.ndarray]:
    """Return the state at the start of a text, name -> [batch, ...]; empty for seq2seq."""
    state = NETWORKS[spec.network].state(spec.model)
    return {
        name: np.zeros((rows, *shape), spec.training.dtype) for name, shape in state.items()
    }
