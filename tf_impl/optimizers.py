"""Gradient clipping and the update rules, for gradients summed over all replicas."""

import tensorflow as tf

from parity.twins.spec.parameters import POWERS, SLOTS

tf1 = tf.compat.v1


def clip_by_global_norm(gradients, clip_norm):
    """Scale gradients by clip_norm / max(clip_norm, norm).

    Args:
      gradients: list of tensors.
      clip_norm: the largest global norm allowed.

    Returns:
      The scaled gradients, and their global norm [] before scaling.

    Source: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
    """
    norm = tf.linalg.global_norm(gradients)
    limit = tf.constant(clip_norm, norm.dtype)
    scale = limit / tf.maximum(limit, norm)
    return [gradient * scale for gradient in gradients], norm


def apply_update(training, parameters, gradients):
    """Add the update of weights and optimiser state to the graph.

    Adam's epsilon is added after the bias correction: m' / (sqrt(v') + epsilon).

    Args:
      training: TrainSpec.
      parameters: list of trainable variables.
      gradients: list of clipped gradients, one per parameter.

    Returns:
      learning_rate: the placeholder that the update reads.
      slots: snapshot name -> the variable that stores it.
      operation: the operation that applies the update.

    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
    """
    learning_rate = tf1.placeholder(training.dtype, [], "learning_rate")
    named = {variable.op.name: variable for variable in parameters}
    slots = _adam_slots(parameters, training.dtype) if training.optimizer == "adam" else {}
    return learning_rate, slots, update(training, named, gradients, slots, learning_rate)


def update(training, parameters, gradients, slots, learning_rate):
    """Update weights and optimiser state in place; see `apply_update`.

    Args:
      training: TrainSpec.
      parameters: name -> trainable variable.
      gradients: list of clipped gradients, one per parameter.
      slots: snapshot name -> the variable that stores it.
      learning_rate: [].

    Returns:
      The operation that applies the update.
    """
    dtype = training.dtype
    pairs = [(*named, g) for named, g in zip(parameters.items(), gradients, strict=True)]
    if training.optimizer == "sgd":
        updates = [
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=learning_rate, delta=gradient
            )
            for _, variable, gradient in pairs
        ]
        return tf.group(*updates)

    power1, power2 = (slots[f"optimizer/{power}"] for power in POWERS["adam"])
    beta1, beta2, epsilon = (
        tf.constant(value, dtype)
        for value in (training.beta1, training.beta2, training.epsilon)
    )
    before1, before2 = tf.identity(power1), tf.identity(power2)
    updates = [
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots[f"optimizer/{name}/m"].handle,
            v=slots[f"optimizer/{name}/v"].handle,
            beta1_power=before1,
            beta2_power=before2,
            lr=learning_rate,
            beta1=beta1,
            beta2=beta2,
            # differs: the op adds epsilon before the bias correction; this scales it to match
            epsilon=epsilon * tf.sqrt(1 - before2),
            grad=gradient,
        )
        for name, variable, gradient in pairs
    ]
    with tf.control_dependencies(updates):
        powers = [
            tf.raw_ops.AssignVariableOp(resource=power1.handle, value=before1 * beta1),
            tf.raw_ops.AssignVariableOp(resource=power2.handle, value=before2 * beta2),
        ]
    return tf.group(*updates, *powers)


def _adam_slots(parameters, dtype):
    def slot(name, shape):
        zeros = tf1.zeros_initializer()
        return tf1.get_variable(
            f"optimizer/{name}", shape, dtype, zeros, trainable=False, use_resource=True
        )

    return {
        f"optimizer/{variable.op.name}/{name}": slot(
            f"{variable.op.name}/{name}", variable.shape
        )
        for variable in parameters
        for name in SLOTS["adam"]
    } | {f"optimizer/{power}": slot(power, []) for power in POWERS["adam"]}
