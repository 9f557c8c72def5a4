"""The layers that the networks are made of; time comes first inside a network.

Every numerical argument is passed; no default of the framework decides a value.
"""

import paddle
import paddle.nn.functional as F  # noqa: N812 - its usual name


def parameter(name, shape, dtype):
    """Return the trainable variable of a canonical name, made on first use.

    Args:
      name: canonical name, which the framework's variable carries too.
      shape: shape in this framework's layout.
      dtype: "float32" or "float64".
    """
    attribute = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Constant(0.0))
    return paddle.create_parameter(shape, dtype, attr=attribute)


def embedding(tokens, name, vocabulary_size, embedding_size, dtype):
    """Look tokens up in a table.

    Args:
      tokens: int64 [time, batch].

    Returns:
      [time, batch, embedding_size].
    """
    table = parameter(f"{name}/table", [vocabulary_size, embedding_size], dtype)
    return F.embedding(tokens, table)


def dropout(inputs, mask):
    """Multiply by a mask that was drawn outside; None is no dropout.

    Args:
      inputs: [time, batch, width].
      mask: [batch, time, width] of 0 or 1/keep, or None.
    """
    if mask is None:
        return inputs
    return inputs * paddle.transpose(mask, [1, 0, 2])


def lstm(inputs, lengths, h, c, name, hidden_size):
    """Run one LSTM layer; beyond a row's length its state stands still and its output is zero.

    Gates are ordered i, f, g, o in `{name}/input_kernel`, `{name}/recurrent_kernel` and
    `{name}/bias`. No gradient flows into the state before the first step.

    Args:
      inputs: [time, batch, input].
      lengths: int64 [batch], real tokens per row, each in 0..time.
      h, c: [batch, hidden], the state before the first step.

    Returns:
      hidden [time, batch, hidden], and the final h and c, each [batch, hidden].

    Source: Zaremba et al. 2014, arXiv:1409.2329.
    """
    dtype, gates = inputs.dtype, 4 * hidden_size
    # differs: this framework's kernels are transposed; parity/parameters.py declares it
    kernel = parameter(f"{name}/input_kernel", [gates, inputs.shape[-1]], dtype)
    recurrent = parameter(f"{name}/recurrent_kernel", [gates, hidden_size], dtype)
    bias = parameter(f"{name}/bias", [gates], dtype)
    # differs: the op wants a second bias; it is a constant zero, and its gradient goes unused
    second_bias = paddle.zeros([gates], dtype)
    second_bias.stop_gradient = False
    block = paddle.static.default_main_program().current_block()
    hidden, last_h, last_c, reserve, unused = (
        block.create_var(name=f"{name}/{part}", dtype=dtype)
        for part in ("hidden", "last_h", "last_c", "reserve", "dropout_state")
    )
    block.append_op(
        type="rnn",
        inputs={
            "Input": [inputs],
            "WeightList": [kernel, recurrent, bias, second_bias],
            "PreState": [paddle.unsqueeze(h, 0), paddle.unsqueeze(c, 0)],
            "SequenceLength": [paddle.cast(lengths, "int32")],
        },
        outputs={
            "Out": [hidden],
            "State": [last_h, last_c],
            "Reserve": [reserve],
            "DropoutState": [unused],
        },
        attrs={
            "mode": "LSTM",
            "num_layers": 1,
            "is_bidirec": False,
            "input_size": inputs.shape[-1],
            "hidden_size": hidden_size,
            "dropout_prob": 0.0,
            "is_test": False,
        },
    )
    return hidden, paddle.squeeze(last_h, 0), paddle.squeeze(last_c, 0)


def linear(inputs, name, size):
    """Project the last axis with a kernel and a bias.

    Args:
      inputs: [rows, input].

    Returns:
      [rows, size].
    """
    kernel = parameter(f"{name}/kernel", [inputs.shape[-1], size], inputs.dtype)
    bias = parameter(f"{name}/bias", [size], inputs.dtype)
    return paddle.matmul(inputs, kernel) + bias


def token_cross_entropy(logits, targets, lengths):
    """Return each real token's cross entropy, and zero on padding.

    Args:
      logits: [time * batch, vocabulary], time varying slowest.
      targets: int64 [time, batch].
      lengths: int64 [batch].

    Returns:
      [time, batch].
    """
    losses = F.softmax_with_cross_entropy(logits, paddle.reshape(targets, [-1, 1]))
    real = paddle.arange(paddle.shape(targets)[0], dtype="int64").unsqueeze(1) < lengths
    return paddle.reshape(losses, paddle.shape(targets)) * paddle.cast(real, losses.dtype)
