"""Gradient clipping and the update rules, for gradients summed over all replicas."""

import paddle
from paddle.nn.clip import _squared_l2_norm

from parity.twins.spec.parameters import POWERS, SLOTS


def clip_by_global_norm(gradients, clip_norm):
    """Scale gradients by clip_norm / max(clip_norm, norm).

    Args:
      gradients: list of tensors.
      clip_norm: the largest global norm allowed.

    Returns:
      The scaled gradients, and their global norm [] before scaling.

    Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
    """
    norm = paddle.sqrt(paddle.add_n([_squared_l2_norm(gradient) for gradient in gradients]))
    limit = paddle.full([1], clip_norm, norm.dtype)
    scale = limit / paddle.maximum(limit, norm)
    # differs: multiplying by a [1] tensor would broadcast it, which is several times slower
    return [paddle.scale(gradient, scale) for gradient in gradients], norm


def apply_update(training, parameters, gradients):
    """Add the update of weights and optimiser state to the graph.

    Adam's epsilon is added after the bias correction: m' / (sqrt(v') + epsilon).

    Args:
      training: TrainSpec.
      parameters: list of trainable variables.
      gradients: list of clipped gradients, one per parameter.

    Returns:
      learning_rate: the variable that the update reads.
      slots: snapshot name -> names of the variables that store it.

    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
    """
    if training.optimizer == "sgd":
        optimizer = paddle.optimizer.SGD(training.learning_rate)
    else:
        rates = training.beta1, training.beta2, training.epsilon
        if training.dtype == "float64":
            # differs: as attributes the op would round them to float32
            rates = [paddle.full([1], rate, training.dtype) for rate in rates]
        optimizer = paddle.optimizer.Adam(training.learning_rate, *rates, lazy_mode=False)
    # The variables that the optimiser makes (learning rate, powers) have the default precision.
    default = paddle.get_default_dtype()
    paddle.set_default_dtype(training.dtype)
    try:
        optimizer.apply_gradients(list(zip(parameters, gradients, strict=True)))
    finally:
        paddle.set_default_dtype(default)
    accumulators = {
        "m": "moment1",
        "v": "moment2",
        "beta1_power": "beta1_pow_acc",
        "beta2_power": "beta2_pow_acc",
    }
    slots = {
        f"optimizer/{parameter.name}/{slot}": [
            optimizer._get_accumulator(accumulators[slot], parameter).name
        ]
        for parameter in parameters
        for slot in SLOTS[training.optimizer]
    } | {
        # differs: one copy of each power per parameter here, all of them equal
        f"optimizer/{power}": [
            optimizer._get_accumulator(accumulators[power], parameter).name
            for parameter in parameters
        ]
        for power in POWERS[training.optimizer]
    }
    return optimizer._global_learning_rate(), slots
