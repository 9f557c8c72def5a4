"""What Paddle's fast kernels replace in a finished program."""

import numpy as np
import pytest

from parity.twins.spec.spec import TrainSpec

# of a tensor's largest value; measured 1.1e-7, from the few roundings of each step
BOUND = 3e-7


@pytest.mark.parametrize("avx512", [False, True])
def test_adam_is_updated_by_vectors_on_one_thread_and_trains_as_the_rule_says(
    frameworks, avx512
):
    for threads in ("1", "2"):
        kinds, tensors = frameworks["paddle"].call(_updates, avx512, threads)
        by_vectors = threads == "1" and not avx512
        assert kinds == ["merged_adam" if by_vectors else "adam"] * 2
        for values, expected in zip(tensors, _as_the_rule_says(), strict=True):
            assert np.max(np.abs(values - expected)) <= BOUND * np.max(np.abs(expected))


@pytest.mark.parametrize("intel", [False, True])
def test_a_product_with_its_bias_and_their_gradients_are_right_by_either_library(
    frameworks, intel
):
    kinds, tensors = frameworks["paddle"].call(_biased_product, intel)
    assert ("fused_matmul" in kinds) == (not intel)
    rows, kernel, bias = (each.astype(np.float64) for each in _factors())
    total = rows @ kernel + bias
    of_total = 2 * total
    expected = (total, of_total @ kernel.T, rows.T @ of_total, of_total.sum(axis=0))
    for values, right in zip(tensors, expected, strict=True):
        assert np.max(np.abs(values - right)) <= BOUND * np.max(np.abs(right))


def _factors() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal(shape, np.float32) for shape in ((9, 4), (4, 6), (6,))]


SHAPES, STEPS = ((64, 33), (7,)), 4
TRAINING = TrainSpec(dtype="float32", optimizer="adam", learning_rate=0.01, epsilon=0.1)


def _drawn(seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape, np.float32) for shape in SHAPES]


def _as_the_rule_says() -> list[np.ndarray]:
    """Return each weight and its two moments after the steps, computed in float64."""
    # rounded to float32, 0.999 is further from 1 by a part in 77,000
    beta1, beta2 = np.float64(np.float32([TRAINING.beta1, TRAINING.beta2]))
    found = []
    steps = [_drawn(step) for step in range(1, STEPS + 1)]
    for weight, *gradients in zip(_drawn(0), *steps, strict=True):
        weight, m, v = weight.astype(np.float64), 0.0, 0.0
        for step, gradient in enumerate(gradients, 1):
            gradient = gradient.astype(np.float64)
            m = beta1 * m + (1 - beta1) * gradient
            v = beta2 * v + (1 - beta2) * gradient**2
            mean, square = m / (1 - beta1**step), v / (1 - beta2**step)
            weight = weight - TRAINING.learning_rate * mean / (
                np.sqrt(square) + TRAINING.epsilon
            )
        found += [weight, m, v]
    return found


# What follows runs in a process of the framework.


def _biased_product(intel: bool) -> tuple[list[str], list[list]]:
    """Return the kinds of the operations, rows K + bias, and the gradients of its squares."""
    import paddle

    from paddle_impl import program_kernels

    program_kernels._is_of_intel = lambda: intel
    program = paddle.static.Program()
    with paddle.static.program_guard(program):
        rows, kernel, bias = given = [
            paddle.static.data(f"factor{index}", value.shape, "float32")
            for index, value in enumerate(_factors())
        ]
        for each in given:
            each.stop_gradient = False
        total = paddle.matmul(rows, kernel) + bias
        gradients = paddle.static.gradients([paddle.sum(total * total)], given)
    program_kernels.replace_operations(program, "float32", on_cpu=True)
    fed = {each.name: value for each, value in zip(given, _factors(), strict=True)}
    executor = paddle.static.Executor(paddle.CPUPlace())
    found = executor.run(program, feed=fed, fetch_list=[total, *gradients])
    kinds = [operation.type for operation in program.global_block().ops]
    return kinds, [each.tolist() for each in found]


def _updates(avx512: bool, threads: str) -> tuple[list[str], list[list]]:
    """Return the kinds of the updates, and each weight and its moments after the steps."""
    import os

    import paddle

    from paddle_impl import program_kernels
    from paddle_impl.optimizers import apply_update

    os.environ["OMP_NUM_THREADS"] = threads
    program_kernels._has_avx512 = lambda: avx512
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        weights = [
            paddle.static.create_parameter(value.shape, "float32", name=f"weight{index}")
            for index, value in enumerate(_drawn(0))
        ]
        gradients = [
            paddle.static.data(f"gradient{index}", weight.shape, "float32")
            for index, weight in enumerate(weights)
        ]
        _, slots = apply_update(TRAINING, weights, gradients)
    program_kernels.replace_operations(program, "float32", on_cpu=True)
    scope, place = paddle.static.Scope(), paddle.CPUPlace()
    with paddle.static.scope_guard(scope):
        executor = paddle.static.Executor(place)
        executor.run(startup)
        for weight, value in zip(weights, _drawn(0), strict=True):
            scope.find_var(weight.name).get_tensor().set(value, place)
        for step in range(1, STEPS + 1):
            given = {f"gradient{index}": each for index, each in enumerate(_drawn(step))}
            executor.run(program, feed=given)
        names = [
            name
            for each in weights
            for name in (
                each.name,
                *slots[f"optimizer/{each.name}/m"],
                *slots[f"optimizer/{each.name}/v"],
            )
        ]
        found = [np.array(scope.find_var(name).get_tensor()).tolist() for name in names]
    return [op.type for op in program.global_block().ops if "adam" in op.type], found
