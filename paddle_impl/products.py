"""Matrix products alone, by which a benchmark knows how fast the engine can multiply."""

import paddle


def multiplier(product, dtype):
    """Return a function without parameters that takes a product, as often as it is taken.

    Args:
      product: a `parity.twins.training.flops.Product`; every element of its factors is one.
      dtype: "float32" or "float64".
    """
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        ones = paddle.nn.initializer.Constant(1.0)

        def factor(shape):
            return paddle.create_parameter(list(shape), dtype, default_initializer=ones)

        second = factor(product.second_shape)
        transposed = product.first_transposed, product.second_transposed
        corners = [
            paddle.matmul(factor(product.first_shape), second, *transposed)[0, 0]
            for _ in range(product.times)
        ]
        corner = paddle.add_n(corners)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    return lambda: executor.run(program, fetch_list=[corner])
