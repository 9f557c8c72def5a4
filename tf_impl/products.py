"""Products of large matrices, by which a benchmark knows how fast the engine can multiply."""

import tensorflow as tf


def multiplier(size, dtype):
    """Return a function without parameters that takes one product of two matrices.

    Args:
      size: the rows and the columns of both.
      dtype: "float32" or "float64".
    """
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        # variables, because the product of two constants is taken only once
        first, second = (tf.Variable(tf.ones([size, size], dtype)) for _ in range(2))
        corner = tf.matmul(first, second)[0, 0]
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
    return lambda: session.run(corner)
