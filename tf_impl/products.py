"""Matrix products alone, by which a benchmark knows how fast the engine can multiply."""

import tensorflow as tf


def multiplier(product, dtype):
    """Return a function without parameters that takes a product, as often as it is taken.

    Args:
      product: a `parity.twins.training.flops.Product`; every element of its factors is one.
      dtype: "float32" or "float64".
    """
    tf1 = tf.compat.v1
    with tf.Graph().as_default():

        def factor(shape):
            # a variable, because the product of two constants is taken only once
            return tf.Variable(tf.ones(shape, dtype))

        second = factor(product.second_shape)
        transposed = product.first_transposed, product.second_transposed
        corners = [
            tf.matmul(factor(product.first_shape), second, *transposed)[0, 0]
            for _ in range(product.times)
        ]
        corner = tf.add_n(corners)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
    return lambda: session.run(corner)
