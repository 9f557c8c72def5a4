"""A loop over time whose gradient takes each weight's product once, after the loop."""

import tensorflow as tf

nest = tf.nest


def scan(step, state, inputs, masks, weights, shared, widths):
    """Run a step over time, with a gradient that takes each weight's product once, at the end.

    The gradient walks back over the saved states and products, and has that of a step by
    `tf.gradients`. TensorFlow's own would multiply for every weight's gradient in each step.

    Args:
      step: called with (product, state, inputs, masks, shared) of one step, returns the next
        state and a list of outputs. `product(name, rows)` multiplies by a weight.
      state: before the first step; like inputs and masks a tensor or a structure of them.
      inputs: [time, batch, width].
      masks: [time, batch, width], which get no gradient.
      weights: name -> [rows, columns] or [batch, rows, columns]; each step uses each once.
      shared: name -> what steps read otherwise; its gradient is summed in the loop.
      widths: of the outputs; None where unknown.

    Returns:
      outputs [time, batch, width], and the state after the last step.
    """

    @tf.custom_gradient
    def run(state, inputs, masks, weights, shared):
        array = _arrays(inputs)
        read_at = _unstack(array, inputs), _unstack(array, masks)
        outputs_at, last, *saved_at = _forward(
            step, state, inputs, read_at, weights, shared, widths
        )
        results = _stack(outputs_at), last

        def gradient(*d_results):
            d_outputs, d_last = nest.pack_sequence_as(results, d_results)
            d_outputs_at = _unstack(array, d_outputs)
            d_state, d_inputs, d_weights, d_shared = _backward(
                step, saved_at, inputs, read_at, weights, shared, d_outputs_at, d_last
            )
            no_gradient = nest.map_structure(lambda each: None, masks)
            return d_state, d_inputs, no_gradient, d_weights, d_shared

        return results, gradient

    return run(state, inputs, masks, weights, shared)


def _forward(step, state, inputs, read_at, weights, shared, widths):
    """Return the outputs' arrays, the last state, and the arrays of states and products."""
    array, steps = _arrays(inputs), _steps(inputs)
    inputs_at, masks_at = read_at

    def body(t, state, states_at, outputs_at, products_at):
        products = {}

        def product(name, rows):
            products[name] = _multiply(rows, weights[name])
            return products[name]

        new_state, outputs = step(
            product, state, _read(inputs_at, t), _read(masks_at, t), shared
        )
        return (
            t + 1,
            new_state,
            _write(states_at, t, state),
            _write(outputs_at, t, outputs),
            _write(products_at, t, products),
        )

    _, last, states_at, outputs_at, products_at = tf.while_loop(
        lambda t, *_: t < steps,
        body,
        [
            0,
            state,
            nest.map_structure(lambda each: array(each.shape[-1]), state),
            [array(width) for width in widths],
            {name: array(weight.shape[-1]) for name, weight in weights.items()},
        ],
    )
    return outputs_at, last, states_at, products_at


def _backward(step, saved_at, inputs, read_at, weights, shared, d_outputs_at, d_last):
    """Return the gradients of the first state, the inputs, the weights and what is shared."""
    (states_at, products_at), (inputs_at, masks_at) = saved_at, read_at
    transposed = {name: transposed_for_loop(weight) for name, weight in weights.items()}
    array = _arrays(inputs)

    def body(t, d_state, d_shared, d_inputs_at, rows_at, d_products_at):
        rows, products = {}, {}

        def product(name, factor):
            rows[name] = factor
            products[name] = _known_product(factor, transposed[name], products_at[name].read(t))
            return products[name]

        # As tensors of this step, to have gradients.
        copies = nest.map_structure(tf.identity, shared)
        before, now = _read(states_at, t), _read(inputs_at, t)
        after = step(product, before, now, _read(masks_at, t), copies)
        sources = before, now, copies, products
        gradients = tf.gradients(
            nest.flatten(after),
            nest.flatten(sources),
            nest.flatten((d_state, _read(d_outputs_at, t))),
        )
        d_before, d_now, d_copies, d_products = nest.pack_sequence_as(sources, gradients)
        return (
            t - 1,
            d_before,
            nest.map_structure(tf.add, d_shared, d_copies),
            _write(d_inputs_at, t, d_now),
            _write(rows_at, t, rows),
            _write(d_products_at, t, d_products),
        )

    _, d_state, d_shared, d_inputs_at, rows_at, d_products_at = tf.while_loop(
        lambda t, *_: t >= 0,
        body,
        [
            _steps(inputs) - 1,
            d_last,
            nest.map_structure(tf.zeros_like, shared),
            nest.map_structure(lambda each: array(each.shape[-1]), inputs),
            {name: array(weight.shape[-2]) for name, weight in weights.items()},
            {name: array(weight.shape[-1]) for name, weight in weights.items()},
        ],
    )
    d_weights = {
        name: _weight_gradient(rows_at[name].stack(), d_products_at[name].stack(), weight)
        for name, weight in weights.items()
    }
    return d_state, _stack(d_inputs_at), d_weights, d_shared


def transposed_for_loop(weight):
    """Transpose a weight once: a product inside a loop would do it anew at every step."""
    return tf.linalg.matrix_transpose(weight)


def _steps(inputs):
    return tf.shape(nest.flatten(inputs)[0])[0]


def _arrays(inputs):
    """Return what makes an array of as many steps as the inputs have, of a given width."""
    dtype, steps = nest.flatten(inputs)[0].dtype, _steps(inputs)
    return lambda width: tf.TensorArray(dtype, steps, element_shape=[None, width])


def _unstack(array, tensors):
    return nest.map_structure(lambda each: array(each.shape[-1]).unstack(each), tensors)


def _stack(arrays):
    return nest.map_structure(lambda array: array.stack(), arrays)


def _read(arrays, t):
    return nest.map_structure(lambda array: array.read(t), arrays)


def _write(arrays, t, values):
    return nest.map_structure(lambda array, value: array.write(t, value), arrays, values)


def _multiply(rows, weight):
    """Multiply rows [batch, width] by one matrix, or each by its own."""
    if weight.shape.rank == 2:
        return tf.matmul(rows, weight)
    return tf.squeeze(tf.matmul(rows[:, None], weight), 1)


def _known_product(rows, transposed, result):
    """Return a product that is known already, with the gradient of rows.

    Args:
      rows: [batch, width].
      transposed: the weight, transposed.
      result: [batch, columns].
    """

    @tf.custom_gradient
    def product(rows):
        return result, lambda d_result: _multiply(d_result, transposed)

    return product(rows)


def _weight_gradient(rows, d_products, weight):
    """Return the gradient of a weight over all steps.

    Args:
      rows: what each step multiplied by the weight, [time, batch, width].
      d_products: the gradient of each step's product, [time, batch, width].
    """
    if weight.shape.rank == 2:
        rows = tf.reshape(rows, [-1, rows.shape[-1]])
        d_products = tf.reshape(d_products, [-1, d_products.shape[-1]])
        return tf.matmul(rows, d_products, transpose_a=True)
    return tf.matmul(tf.transpose(rows, [1, 2, 0]), tf.transpose(d_products, [1, 0, 2]))
