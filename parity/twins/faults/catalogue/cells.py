"""Faults of the recurrent layers: gates, biases, nonlinearities, lengths, directions, state."""

from itertools import combinations

from parity.twins.faults.edits import mirrored, paddle, tensorflow
from parity.twins.faults.fault import Fault

_HIDDEN = ("forward/lstm_0/hidden",)
_FIRST_GRU = ("forward/encoder/gru_0/hidden",)
_SPLIT = "i, f, g, o = tf.split(gates, 4, axis=1)"
_PLAIN_SPLIT = "i, f, g, o = tf.split(from_inputs + from_state, 4, axis=1)"
_SQUASH = "i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)"
_PLAIN_C = "    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)\n"
_PLAIN_H = "    return tf.sigmoid(o) * tf.tanh(c), c\n"
_PLAIN_STEP = "        after = CELLS[cell](from_inputs, from_state, *state)\n"
_GRU_MIX = ("(z * h + (1 - z) * c,)", "((1 - z) * h + z * c,)")
_GRU_GATES = (
    ("    z = tf.sigmoid(z + z_state)\n", "    z = tf.sigmoid(z + z_state + 1)\n"),
    ("tf.sigmoid(r + r_state)", "tf.sigmoid(r + r_state + 1)"),
)

# Paddle's own operation takes the gates in the order of its weights: they are exchanged there.
_PADDLE_CELL = "    second_bias = paddle.zeros(bias.shape, inputs.dtype)\n"


def _exchanged(gates: int, a: int, b: int) -> str:
    return f"""    def exchanged(weight):
        parts = paddle.split(weight, {gates}, axis=0)
        parts[{a}], parts[{b}] = parts[{b}], parts[{a}]
        return paddle.concat(parts, axis=0)

    kernel, recurrent_kernel, bias = map(exchanged, (kernel, recurrent_kernel, bias))
"""


def _swapped_gates() -> list[Fault]:
    faults = []
    for a, b in combinations("ifgo", 2):
        order = ", ".join({a: b, b: a}.get(gate, gate) for gate in "ifgo")
        numbers = "ifgo".index(a), "ifgo".index(b)
        faults.append(
            Fault(
                f"lstm-gates-{a}-{b}",
                f"an LSTM takes the gates {a} and {b} in the other order",
                "LSTM gates",
                "stream",
                _HIDDEN,
                tensorflow("kernels.py", (_SPLIT, _SPLIT.replace("i, f, g, o", order)))
                | paddle("kernels.py", (_PADDLE_CELL, _exchanged(4, *numbers) + _PADDLE_CELL)),
                plain=mirrored(
                    "layers.py", (_PLAIN_SPLIT, _PLAIN_SPLIT.replace("i, f, g, o", order))
                ),
            )
        )
    for a, b in combinations("rzc", 2):
        wrong = [{a: b, b: a}.get(gate, gate) for gate in "rzc"]
        from_state = [f"{gate}_state" for gate in wrong]
        changes = [
            ("r, z, c = tf.split", f"{', '.join(wrong)} = tf.split"),
            ("r_state, z_state, c_state = tf.split", f"{', '.join(from_state)} = tf.split"),
        ]
        numbers = "rzc".index(a), "rzc".index(b)
        faults.append(
            Fault(
                f"gru-gates-{a}-{b}",
                f"a GRU takes the gates {a} and {b} in the other order",
                "GRU",
                "bahdanau",
                _FIRST_GRU,
                tensorflow("layers.py", *changes)
                | paddle("kernels.py", (_PADDLE_CELL, _exchanged(3, *numbers) + _PADDLE_CELL)),
                plain=mirrored("layers.py", *changes),
            )
        )
    return faults


FAULTS = (
    *_swapped_gates(),
    Fault(
        "forget-bias",
        "1 is added to the forget gate, as TensorFlow 1's cell does by default",
        "LSTM gates",
        "stream",
        _HIDDEN,
        tensorflow(
            "kernels.py", (_SQUASH, _SQUASH.replace("tf.sigmoid(f)", "tf.sigmoid(f + 1)"))
        )
        | paddle(
            "kernels.py",
            (
                _PADDLE_CELL,
                f"""    if mode == "LSTM":
        ones = paddle.ones([hidden_size], inputs.dtype)
        zeros = paddle.zeros([hidden_size], inputs.dtype)
        bias = bias + paddle.concat([zeros, ones, zeros, zeros])
{_PADDLE_CELL}""",
            ),
        ),
        plain=mirrored(
            "layers.py", (_PLAIN_C, _PLAIN_C.replace("tf.sigmoid(f)", "tf.sigmoid(f + 1)"))
        ),
    ),
    Fault(
        "bias-twice",
        "a recurrent layer adds its bias twice: there are two, and both were filled with it",
        "Two biases",
        "stream",
        _HIDDEN,
        tensorflow(
            "kernels.py",
            (
                "_by_step(tf.matmul(flat, kernel) + bias, inputs)",
                "_by_step(tf.matmul(flat, kernel) + 2 * bias, inputs)",
            ),
        )
        | paddle(
            "kernels.py",
            (
                '"WeightList": [kernel, recurrent_kernel, bias, second_bias]',
                '"WeightList": [kernel, recurrent_kernel, bias, bias + second_bias]',
            ),
        ),
        plain=mirrored(
            "layers.py",
            (
                "        from_inputs = cell_product(inputs, kernel) + bias\n",
                "        from_inputs = cell_product(inputs, kernel) + 2 * bias\n",
            ),
        ),
    ),
    Fault(
        "peephole",
        "the output gate also looks at the cell (a peephole)",
        "LSTM gates",
        "stream",
        _HIDDEN,
        tensorflow(
            "kernels.py",
            (
                "        tanh_c = tf.tanh(new_c)\n        new_h = o * tanh_c",
                "        tanh_c = tf.tanh(new_c)\n"
                "        o = 1 / (1 + (1 - o) / o * tf.exp(-1e-3 * new_c))\n"
                "        new_h = o * tanh_c",
            ),
        ),
        plain=mirrored("layers.py", (_PLAIN_H, _PLAIN_H.replace("(o)", "(o + 1e-3 * c)"))),
    ),
    Fault(
        "sigmoid-candidate",
        "an LSTM's candidate goes through a sigmoid in place of tanh",
        "LSTM gates",
        "stream",
        _HIDDEN,
        tensorflow("kernels.py", (_SQUASH, _SQUASH.replace("tf.tanh(g)", "tf.sigmoid(g)"))),
        plain=mirrored(
            "layers.py", (_PLAIN_C, _PLAIN_C.replace("tf.tanh(g)", "tf.sigmoid(g)"))
        ),
    ),
    Fault(
        "no-output-tanh",
        "an LSTM's output is its cell without tanh",
        "LSTM gates",
        "stream",
        _HIDDEN,
        tensorflow("kernels.py", ("tanh_c = tf.tanh(new_c)", "tanh_c = new_c")),
        plain=mirrored("layers.py", (_PLAIN_H, _PLAIN_H.replace("tf.tanh(c)", "c"))),
    ),
    Fault(
        "fed-cell-sigmoid",
        "the cell of a decoder that is fed its attention has a sigmoid in place of tanh",
        "LSTM gates",
        "scaled, fed",
        ("forward/decoder/lstm_0/hidden",),
        mirrored("layers.py", (_PLAIN_C, _PLAIN_C.replace("tf.tanh(g)", "tf.sigmoid(g)"))),
        plain={},  # the encoder's cell is the same there: see sigmoid-candidate
    ),
    Fault(
        "gru-mix",
        "a GRU mixes old state and candidate with z and 1 - z the other way round",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        tensorflow("layers.py", _GRU_MIX),
        plain=mirrored("layers.py", _GRU_MIX),
    ),
    Fault(
        "gru-mix-fed",
        "the GRU of a decoder that is fed its context mixes with z and 1 - z the other way round",
        "GRU",
        "bahdanau, fed",
        ("forward/decoder/gru_0/hidden",),
        paddle("layers.py", _GRU_MIX),
        plain={},  # the encoder's cell is the same there: see gru-mix
    ),
    Fault(
        "gru-reset-before",
        "a GRU's reset gate acts before the matrix product, not after it",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        tensorflow(
            "kernels.py",
            (
                '        (new_h,) = CELLS["gru"](from_inputs, product("recurrent", h), h)\n',
                """        moved, size = product("recurrent", h), hidden_size
        r = tf.sigmoid(from_inputs[:, :size] + moved[:, :size])
        z = tf.sigmoid(from_inputs[:, size : 2 * size] + moved[:, size : 2 * size])
        reset = tf.matmul(r * h, shared["kernel"][:, 2 * size :])
        c = tf.tanh(from_inputs[:, 2 * size :] + reset)
        new_h = z * h + (1 - z) * c
""",
            ),
            (
                '        {"recurrent": recurrent_kernel},\n        {},\n',
                '        {"recurrent": recurrent_kernel},\n        {"kernel": recurrent_kernel},\n',
            ),
        ),
        plain=mirrored(
            "layers.py",
            (
                _PLAIN_STEP,
                """        size = hidden_size
        r = tf.sigmoid((from_inputs + from_state)[:, :size])
        reset = cell_product(r * state[0], recurrent_kernel)[:, 2 * size :]
        from_state = tf.concat([from_state[:, : 2 * size], reset / r], axis=1)
"""
                + _PLAIN_STEP,
            ),
        ),
    ),
    Fault(
        "gru-gate-bias",
        "1 is added to a GRU's gates, as TensorFlow 1's cell starts their bias there",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        tensorflow("layers.py", *_GRU_GATES)
        | paddle(
            "kernels.py",
            (
                _PADDLE_CELL,
                f"""    if mode == "GRU":
        ones = paddle.ones([2 * hidden_size], inputs.dtype)
        bias = bias + paddle.concat([ones, paddle.zeros([hidden_size], inputs.dtype)])
{_PADDLE_CELL}""",
            ),
        ),
        plain=mirrored("layers.py", *_GRU_GATES),
    ),
    Fault(
        "gru-second-bias",
        "a GRU's recurrent product has a bias, too, inside the reset gate",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        paddle(
            "kernels.py",
            (
                '"WeightList": [kernel, recurrent_kernel, bias, second_bias]',
                '"WeightList": [kernel, recurrent_kernel, bias, second_bias + 0.01]',
            ),
        )
        | tensorflow(
            "kernels.py",
            (
                'CELLS["gru"](from_inputs, product("recurrent", h), h)',
                'CELLS["gru"](from_inputs, product("recurrent", h) + 0.01, h)',
            ),
        ),
        plain=mirrored(
            "layers.py", (_PLAIN_STEP, _PLAIN_STEP.replace("from_state", "from_state + 0.01"))
        ),
    ),
)
