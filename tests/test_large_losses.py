"""Cross entropy by the fast kernels, of targets that a softmax gives no probability."""

import numpy as np
import pytest

# of the largest value; measured 8.8e-8 in float32, 1.9e-16 in float64
BOUNDS = {"float32": 3e-7, "float64": 1e-15}
# the largest loss, or a little less; in float32 the second one's probability is subnormal
LARGEST = {"none large": 3.0, "one of few digits": 95.0, "one beyond the softmax": 1000.0}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("largest", LARGEST.values(), ids=list(LARGEST))
@pytest.mark.parametrize("side", ["paddle", "tensorflow"])
def test_losses_of_any_size_and_their_gradients_are_right(frameworks, side, largest, dtype):
    find = {"paddle": _by_paddle, "tensorflow": _by_tensorflow}[side]
    right = _right(*_given(dtype, largest))
    assert max(right[0]) > largest
    for found, expected in zip(frameworks[side].call(find, dtype, largest), right, strict=True):
        assert np.max(np.abs(found - expected)) <= BOUNDS[dtype] * np.max(np.abs(expected))


def test_the_softmax_alone_reads_the_logits(frameworks):
    # or the engine keeps them beside the probabilities
    readers = frameworks["paddle"].call(_readers_of_logits)
    assert readers == ["softmax"]


def _given(dtype, largest):
    draw = np.random.default_rng(1)
    rows, kernel = draw.standard_normal((5, 4)), draw.standard_normal((4, 6))
    bias, targets = draw.standard_normal(6), np.array([2, 0, 1, 5, 3])
    # the logits of the first row: alike, but for that of its target
    rows[0] = 0
    bias[targets[0]] = -largest
    return [each.astype(dtype) for each in (rows, kernel, bias)] + [targets]


def _right(rows, kernel, bias, targets):
    """Return the losses, and the gradient of their sum to the bias, by NumPy in float64."""
    logits = rows.astype(np.float64) @ kernel + bias
    logits -= logits.max(axis=1, keepdims=True)
    exponentials = np.exp(logits)
    total = exponentials.sum(axis=1)
    at_targets = np.arange(len(targets)), targets
    gradient = exponentials / total[:, None]
    gradient[at_targets] -= 1
    return np.log(total) - logits[at_targets], gradient.sum(axis=0)


# What follows runs in a process of a framework.


def _program(rows, kernel, bias):
    """Return Paddle's program, its scope, and the names of logits, losses and their sum."""
    import paddle

    from paddle_impl.layers import token_cross_entropy
    from paddle_impl.program_kernels import replace_operations

    program, scope, dtype = paddle.static.Program(), paddle.static.Scope(), str(rows.dtype)
    with paddle.static.program_guard(program):
        weights = {}
        for name, value in {"kernel": kernel, "bias": bias}.items():
            weights[name] = paddle.static.create_parameter(value.shape, dtype, name=name)
            scope.var(name).get_tensor().set(value, paddle.CPUPlace())
        read = paddle.static.data("rows", [-1, rows.shape[1]], dtype)
        targets = paddle.static.data("targets", [-1], "int64")
        logits = paddle.matmul(read, weights["kernel"]) + weights["bias"]
        losses = token_cross_entropy(logits, targets)
        total = paddle.sum(losses)
        paddle.static.append_backward(total)
    replace_operations(program, dtype, on_cpu=True)
    return program, scope, logits.name, losses.name, total.name


def _readers_of_logits():
    program, _, logits, _, _ = _program(*_given("float32", 3.0)[:3])
    operations = program.global_block().ops
    return [each.type for each in operations if logits in each.input_arg_names]


def _by_paddle(dtype, largest):
    """Return the losses, and the gradient of their sum to the bias."""
    import paddle

    from paddle_impl.executor import ParallelExecutor

    rows, kernel, bias, targets = _given(dtype, largest)
    program, scope, _, losses, total = _program(rows, kernel, bias)
    executor = ParallelExecutor(program, total, [paddle.CPUPlace()], scope)
    found = executor.run([losses, "bias@GRAD"], [{"rows": rows, "targets": targets}])
    return [values[0].tolist() for values in found]


def _by_tensorflow(dtype, largest):
    """Return the losses, and the gradient of their sum to the bias."""
    import tensorflow as tf

    from tf_impl.kernels import token_cross_entropy

    rows, kernel, bias, targets = _given(dtype, largest)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        added = tf.constant(bias)
        logits = tf.constant(rows) @ tf.constant(kernel) + added
        losses = token_cross_entropy(logits, tf.constant(targets))
        (gradient,) = tf.gradients(tf.reduce_sum(losses), added)
        return [each.tolist() for each in session.run([losses, gradient])]
