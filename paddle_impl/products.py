"""Products of large matrices, by which a benchmark knows how fast the engine can multiply."""

import paddle


def multiplier(size, dtype):
    """Return a function without parameters that takes one product of two matrices.

    Args:
      size: the rows and the columns of both.
      dtype: "float32" or "float64".
    """
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        ones = paddle.nn.initializer.Constant(1.0)
        first, second = (
            paddle.create_parameter([size, size], dtype, default_initializer=ones)
            for _ in range(2)
        )
        corner = paddle.matmul(first, second)[0, 0]
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    return lambda: executor.run(program, fetch_list=[corner])
