"""Faults of the update: Adam's constants and powers, decay, rates, slots of the replicas."""

from parity.twins.faults.edits import mirrored, paddle, tensorflow
from parity.twins.faults.fault import Fault

_WEIGHT = ("weight/*",)
_EPSILON = "            epsilon=epsilon * tf.sqrt(1 - before2),\n"
_POWERS = "    return tf.group(*updates, *powers)\n"
_BEFORE = "    before1, before2 = tf.identity(power1), tf.identity(power2)\n"
_PADDLE_CONSTANTS = "for value in (training.beta1, training.beta2, training.epsilon)"

FAULTS = (
    Fault(
        "epsilon-inside",
        "Adam's epsilon is added before the bias correction, as TensorFlow 1 does",
        "Adam ε",
        "sentences",
        _WEIGHT,
        tensorflow("optimizers.py", (_EPSILON, "            epsilon=epsilon,\n")),
    ),
    Fault(
        "epsilon-of-keras",
        "Adam's epsilon is Keras's default, 1e-7",
        "Adam ε",
        "sentences",
        _WEIGHT,
        tensorflow(
            "optimizers.py",
            (_EPSILON, "            epsilon=10 * epsilon * tf.sqrt(1 - before2),\n"),
        )
        | paddle(
            "optimizers.py",
            (
                _PADDLE_CONSTANTS,
                "for value in (training.beta1, training.beta2, 10 * training.epsilon)",
            ),
        ),
    ),
    Fault(
        "beta2",
        "Adam's beta2 is 0.99 in place of 0.999",
        "Sparse Adam",
        "sentences",
        ("optimizer/*",),
        mirrored(
            "optimizers.py",
            (
                "(training.beta1, training.beta2, training.epsilon)",
                "(training.beta1, 0.99, training.epsilon)",
            ),
        ),
    ),
    Fault(
        "constants-in-float32",
        "Adam's beta1 and beta2 are kept in float32 in a float64 run",
        "Sparse Adam",
        "sentences",
        ("optimizer/*",),
        tensorflow(
            "optimizers.py",
            (
                "        tf.constant(value, dtype)\n        for value",
                "        tf.cast(tf.constant(value, tf.float32), dtype)\n        for value",
            ),
        ),
        dtypes=("float64",),
        undetectable_reason="a float32 run keeps them in float32",
    ),
    Fault(
        "powers-stand-still",
        "the powers of beta1 and beta2 are not updated",
        "Sparse Adam",
        "sentences",
        ("optimizer/beta1_power", "optimizer/beta2_power"),
        tensorflow("optimizers.py", (_POWERS, "    return tf.group(*updates)  # alone\n")),
    ),
    Fault(
        "powers-late",
        "the bias correction lags one step behind",
        "Sparse Adam",
        "sentences",
        _WEIGHT,
        tensorflow(
            "optimizers.py",
            (
                "            beta1_power=before1,\n",
                "            beta1_power=before1 / beta1,\n".replace(
                    "before1 / beta1", "before1 * beta1"
                ),
            ),
        ),
    ),
    Fault(
        "no-bias-correction",
        "Adam does not correct its moments' bias",
        "Sparse Adam",
        "sentences",
        _WEIGHT,
        tensorflow(
            "optimizers.py",
            (
                "            beta1_power=before1,\n",
                "            beta1_power=tf.zeros_like(before1),\n",
            ),
        ),
    ),
    Fault(
        "lazy-adam",
        "moments of rows that a batch did not touch are left as they are (lazy Adam)",
        "Sparse Adam",
        "sentences",
        ("optimizer/embed/table/*",),
        tensorflow(
            "optimizers.py",
            (
                _BEFORE,
                """    table, _, d_table = pairs[0]
    names = [f"optimizer/{table}/{name}" for name in SLOTS["adam"]]
    held = [tf.identity(slots[name]) for name in names]
    touched = tf.reduce_any(tf.not_equal(d_table, 0), axis=1, keepdims=True)
    with tf.control_dependencies(held):
        before1, before2 = tf.identity(power1), tf.identity(power2)
""",
            ),
            (
                _POWERS,
                """    with tf.control_dependencies(updates):
        powers += [
            slots[name].assign(tf.where(touched, slots[name].read_value(), before))
            for name, before in zip(names, held, strict=True)
        ]
    return tf.group(*updates, *powers)
""",
            ),
        ),
    ),
    Fault(
        "weight-decay",
        "a weight decay of 1e-3 sneaked into the gradient",
        "Weight decay",
        "stream",
        (*_WEIGHT, "clipped_gradient/*"),
        tensorflow(
            "optimizers.py",
            (
                "var=variable.handle, alpha=learning_rate, delta=gradient\n",
                "var=variable.handle, alpha=learning_rate, delta=gradient + 1e-3 * variable\n",
            ),
        )
        | paddle(
            "optimizers.py",
            (
                "paddle.optimizer.SGD(training.learning_rate)",
                "paddle.optimizer.SGD(training.learning_rate, weight_decay=1e-3)",
            ),
        ),
    ),
    Fault(
        "two-biases",
        "a layer's bias is the sum of two, and each takes the whole step",
        "Two biases",
        "stream",
        ("weight/lstm_0/bias",),
        tensorflow(
            "optimizers.py",
            (
                "var=variable.handle, alpha=learning_rate, delta=gradient\n",
                'var=variable.handle, alpha=learning_rate, delta=gradient * (2 if "lstm_" in variable.op.name and variable.op.name.endswith("bias") else 1)\n',
            ),
        ),
    ),
    Fault(
        "rate-not-passed-on",
        "the update goes on with the first learning rate",
        "Learning rate",
        "stream",
        _WEIGHT,
        tensorflow(
            "strategies/synchronous_base.py",
            (
                "{self._learning_rate: learning_rate}",
                "{self._learning_rate: self.spec.training.learning_rate}",
            ),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (
                "        if learning_rate == self._learning_rate_set:\n",
                "        if self._learning_rate_set is not None:\n",
            ),
        ),
    ),
    Fault(
        "rate-on-first-replica",
        "only the first replica gets the new learning rate",
        "Optimiser state",
        "stream",
        ("replicas/weight/*",),
        paddle(
            "strategies/synchronous_base.py",
            (
                "        for scope, place in self._copies():\n            scope.find_var(self._learning_rate",
                "        for scope, place in self._copies()[:1]:\n            scope.find_var(self._learning_rate",
            ),
        ),
        unconfirmable_reason="the trace has the first replica's weights alone, and these are right",
    ),
    Fault(
        "one-weight-frozen",
        "one parameter is left out of the update",
        "AUTO_REUSE",
        "stream",
        ("weight/softmax/bias",),
        tensorflow(
            "optimizers.py",
            (
                "            for _, variable, gradient in pairs\n",
                '            for name, variable, gradient in pairs\n            if name != "softmax/bias"\n',
            ),
        )
        | paddle(
            "optimizers.py",
            (
                "optimizer.apply_gradients(list(zip(parameters, gradients, strict=True)))",
                'optimizer.apply_gradients([(p, g) for p, g in zip(parameters, gradients) if p.name != "softmax/bias"])',
            ),
        ),
    ),
)
