"""Faults of the recurrent layers: gates, biases, nonlinearities, lengths, directions, state."""

from itertools import combinations

from parity.faults.catalogue.edits import mirrored, paddle, shared, tensorflow
from parity.faults.fault import Fault

_HIDDEN = ("forward/lstm_0/hidden",)
_FIRST_GRU = ("forward/encoder/gru_0/hidden",)
_SPLIT = "i, f, g, o = tf.split(from_inputs.read(t) + tf.matmul(h, recurrent), 4, axis=1)"
_SQUASH = "i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)"

# Paddle's own kernel takes the gates as they lie in its weights: there they are exchanged.
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
                tensorflow("layers.py", (_SPLIT, _SPLIT.replace("i, f, g, o", order)))
                | paddle("layers.py", (_PADDLE_CELL, _exchanged(4, *numbers) + _PADDLE_CELL)),
            )
        )
    for a, b in combinations("rzc", 2):
        right = [f"{side}_{gate}" for side in ("inputs", "h") for gate in "rzc"]
        wrong = [
            f"{side}_{({a: b, b: a}).get(g, g)}" for side in ("inputs", "h") for g in "rzc"
        ]
        changes = [
            (f"{', '.join(right[k : k + 3])} = tf", f"{', '.join(wrong[k : k + 3])} = tf")
            for k in (0, 3)
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
                | paddle("layers.py", (_PADDLE_CELL, _exchanged(3, *numbers) + _PADDLE_CELL)),
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
            "layers.py", (_SQUASH, _SQUASH.replace("tf.sigmoid(f)", "tf.sigmoid(f + 1)"))
        )
        | paddle(
            "layers.py",
            (
                _PADDLE_CELL,
                f"""    if mode == "LSTM":
        ones = paddle.ones([hidden_size], inputs.dtype)
        zeros = paddle.zeros([hidden_size], inputs.dtype)
        bias = bias + paddle.concat([zeros, ones, zeros, zeros])
{_PADDLE_CELL}""",
            ),
        ),
    ),
    Fault(
        "bias-twice",
        "a recurrent layer adds its bias twice: there are two, and both were filled with it",
        "Two biases",
        "stream",
        _HIDDEN,
        tensorflow(
            "layers.py",
            (
                "step_gates(tf.matmul(flat, kernel) + bias)",
                "step_gates(tf.matmul(flat, kernel) + 2 * bias)",
            ),
        )
        | paddle(
            "layers.py",
            (
                '"WeightList": [kernel, recurrent_kernel, bias, second_bias]',
                '"WeightList": [kernel, recurrent_kernel, bias, bias + second_bias]',
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
            "layers.py",
            (
                "        tanh_c = tf.tanh(new_c)\n        new_h = o * tanh_c",
                "        tanh_c = tf.tanh(new_c)\n"
                "        o = o + 1e-3 * new_c * o * (1 - o)\n"
                "        new_h = o * tanh_c",
            ),
        ),
    ),
    Fault(
        "sigmoid-candidate",
        "an LSTM's candidate goes through a sigmoid in place of tanh",
        "LSTM gates",
        "stream",
        _HIDDEN,
        tensorflow("layers.py", (_SQUASH, _SQUASH.replace("tf.tanh(g)", "tf.sigmoid(g)"))),
    ),
    Fault(
        "no-output-tanh",
        "an LSTM's output is its cell without tanh",
        "LSTM gates",
        "stream",
        _HIDDEN,
        tensorflow("layers.py", ("tanh_c = tf.tanh(new_c)", "tanh_c = new_c")),
    ),
    Fault(
        "fed-cell-sigmoid",
        "the cell of a decoder that is fed its attention has a sigmoid in place of tanh",
        "LSTM gates",
        "scaled, fed",
        ("forward/decoder/lstm_0/hidden",),
        mirrored(
            "layers.py",
            ("tf.sigmoid(i) * tf.tanh(g)", "tf.sigmoid(i) * tf.sigmoid(g)"),
        )
        | paddle("layers.py", ("F.sigmoid(i) * paddle.tanh(g)", "F.sigmoid(i) * F.sigmoid(g)")),
    ),
    Fault(
        "gru-mix",
        "a GRU mixes old state and candidate with z and 1 - z the other way round",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        tensorflow("layers.py", ("(z * h + (1 - z) * c,)", "((1 - z) * h + z * c,)")),
    ),
    Fault(
        "gru-mix-fed",
        "the GRU of a decoder that is fed its context mixes with z and 1 - z the other way round",
        "GRU",
        "bahdanau, fed",
        ("forward/decoder/gru_0/hidden",),
        paddle("layers.py", ("(z * h + (1 - z) * c,)", "((1 - z) * h + z * c,)")),
    ),
    Fault(
        "gru-reset-before",
        "a GRU's reset gate acts before the matrix product, not after it",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        tensorflow(
            "layers.py",
            (
                '        (new_h,) = _gru_cell(from_inputs, product("recurrent", h), h)\n',
                """        moved, size = product("recurrent", h), hidden_size
        r = tf.sigmoid(from_inputs[:, :size] + moved[:, :size])
        z = tf.sigmoid(from_inputs[:, size : 2 * size] + moved[:, size : 2 * size])
        reset = tf.matmul(r * h, shared["kernel"][:, 2 * size :])
        c = tf.tanh(from_inputs[:, 2 * size :] + reset)
        new_h = z * h + (1 - z) * c
""",
            ),
            (
                'real, {"recurrent": recurrent_kernel}, {}, [hidden_size]',
                'real, {"recurrent": recurrent_kernel}, {"kernel": recurrent_kernel}, [hidden_size]',
            ),
        ),
    ),
    Fault(
        "gru-gate-bias",
        "1 is added to a GRU's gates, as TensorFlow 1's cell starts their bias there",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        tensorflow(
            "layers.py",
            (
                "    from_inputs = _product(inputs, kernel) + bias\n\n    def step",
                "    from_inputs = _product(inputs, kernel) + bias\n"
                "    added = [1.0] * (2 * hidden_size) + [0.0] * hidden_size\n"
                "    from_inputs += tf.constant(added, dtype)\n\n    def step",
            ),
        )
        | paddle(
            "layers.py",
            (
                _PADDLE_CELL,
                f"""    if mode == "GRU":
        ones = paddle.ones([2 * hidden_size], inputs.dtype)
        bias = bias + paddle.concat([ones, paddle.zeros([hidden_size], inputs.dtype)])
{_PADDLE_CELL}""",
            ),
        ),
    ),
    Fault(
        "gru-second-bias",
        "a GRU's recurrent product has a bias, too, inside the reset gate",
        "GRU",
        "bahdanau",
        _FIRST_GRU,
        paddle(
            "layers.py",
            (
                '"WeightList": [kernel, recurrent_kernel, bias, second_bias]',
                '"WeightList": [kernel, recurrent_kernel, bias, second_bias + 0.01]',
            ),
        )
        | tensorflow(
            "layers.py",
            (
                '_gru_cell(from_inputs, product("recurrent", h), h)',
                '_gru_cell(from_inputs, product("recurrent", h) + 0.01, h)',
            ),
        ),
    ),
    Fault(
        "state-runs-on",
        "beyond a row's length the state goes on changing",
        "Beyond a row's length",
        "sentences",
        ("forward/c", "forward/h"),
        tensorflow(
            "layers.py",
            ("            tf.where(on > 0, new_c, c),\n", "            new_c,\n"),
            (
                "            tf.where(on > 0, new_h, h),\n            ",
                "            new_h,\n            ",
            ),
        )
        | paddle(
            "layers.py",
            (
                '"SequenceLength": [paddle.cast(lengths, "int32")]',
                '"SequenceLength": [0 * paddle.cast(lengths, "int32") + paddle.shape(inputs)[0]]',
            ),
        ),
    ),
    Fault(
        "length-short",
        "a recurrent layer stops one step before the end of each row",
        "Beyond a row's length",
        "sentences",
        _HIDDEN,
        tensorflow(
            "layers.py",
            (
                "    return _lstm(inputs, real, h, c, kernel, recurrent_kernel, bias)",
                "    real = tf.cast(_real(inputs, lengths - 1), dtype)[:, :, None]\n    return _lstm(inputs, real, h, c, kernel, recurrent_kernel, bias)",
            ),
        )
        | paddle(
            "layers.py",
            (
                '"SequenceLength": [paddle.cast(lengths, "int32")]',
                '"SequenceLength": [paddle.cast(lengths - 1, "int32")]',
            ),
        ),
    ),
    Fault(
        "state-not-carried",
        "each batch of a contiguous text starts from a zero state",
        "State from batch to batch",
        "stream",
        _HIDDEN,
        shared(
            "parity/training/steps.py",
            (
                "if state is None or not inputs.carry:",
                "if True:",
            ),
        ),
    ),
    Fault(
        "state-not-reset",
        "a new epoch goes on from the last one's state",
        "State from batch to batch",
        "stream",
        _HIDDEN,
        shared(
            "parity/training/steps.py",
            (
                "if state is None or not inputs.carry:",
                "if state is None:",
            ),
        ),
    ),
    Fault(
        "state-swapped",
        "an LSTM's h and c are handed on as each other",
        "State from batch to batch",
        "stream",
        ("forward/c", "forward/h"),
        mirrored(
            "networks.py",
            ("        states.append((h, c))\n", "        states.append((c, h))\n"),
        ),
    ),
    Fault(
        "layers-share-state",
        "the upper layer starts from the lower one's state",
        "State from batch to batch",
        "stream",
        ("forward/lstm_1/hidden",),
        mirrored(
            "networks.py",
            (
                "    return [tuple(part[:, k] for part in parts) for k in range(model.num_layers)]",
                "    return [tuple(part[:, 0] for part in parts) for k in range(model.num_layers)]",
            ),
        ),
    ),
    Fault(
        "backward-not-reversed",
        "the encoder's backward direction reads the source forwards",
        "Bidirectional encoder",
        "general",
        ("forward/encoder/lstm_0/hidden",),
        mirrored(
            "layers.py", ("    turned = reverse(inputs, lengths)\n", "    turned = inputs\n")
        ),
    ),
    Fault(
        "backward-over-padding",
        "the encoder's backward direction begins with the padding",
        "Bidirectional encoder",
        "general",
        ("forward/encoder/lstm_0/hidden",),
        tensorflow(
            "layers.py",
            (
                "    turned = reverse(inputs, lengths)\n",
                "    turned = tf.reverse(inputs, [0])\n",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    turned = reverse(inputs, lengths)\n",
                "    turned = paddle.flip(inputs, [0])\n",
            ),
        ),
    ),
    Fault(
        "backward-not-turned-back",
        "the backward direction's outputs stay in reversed order",
        "Bidirectional encoder",
        "bahdanau",
        _FIRST_GRU,
        mirrored(
            "layers.py",
            (
                "hidden = tf.concat([ahead, reverse(back, lengths)], axis=2)",
                "hidden = tf.concat([ahead, back], axis=2)",
            ),
        ),
    ),
    Fault(
        "directions-swapped",
        "the two directions' final states are joined in the other order",
        "Bidirectional encoder",
        "general",
        ("forward/encoder/c", "forward/encoder/h"),
        mirrored(
            "layers.py",
            (
                "    last = zip(last_ahead, last_back, strict=True)\n",
                "    last = zip(last_back, last_ahead, strict=True)\n",
            ),
        ),
    ),
    Fault(
        "one-layer-too-few",
        "the loop over layers returns early: the upper layer's output is the lower one's",
        "One layer against two",
        "stream",
        ("forward/logits",),
        mirrored(
            "networks.py",
            (
                '        hidden = tap(f"{name}/hidden", hidden)\n        hidden = dropout(hidden, masks.get(name))\n',
                '        hidden = tap(f"{name}/hidden", hidden)\n'
                "        hidden = hidden if k == 0 else first + 0 * hidden\n"
                "        first = hidden\n"
                "        hidden = dropout(hidden, masks.get(name))\n",
            ),
        ),
    ),
    Fault(
        "decoder-starts-from-zero",
        "the decoder starts from zeros, not from the encoder's final state",
        "Beyond a row's length",
        "general",
        ("forward/decoder/lstm_0/hidden",),
        mirrored(
            "networks.py",
            (
                "    outputs, _, _ = decode(model, batch, states, fed,",
                "    states = [tuple(tf.zeros_like(part) for part in each) for each in states]\n"
                "    outputs, _, _ = decode(model, batch, states, fed,",
            ),
        ),
    ),
    Fault(
        "decoder-starts-upside-down",
        "the decoder's layers start from the encoder's layers in the other order",
        "Beyond a row's length",
        "general",
        ("forward/decoder/lstm_0/hidden",),
        mirrored(
            "networks.py",
            (
                "    outputs, _, _ = decode(model, batch, states, fed,",
                "    outputs, _, _ = decode(model, batch, states[::-1], fed,",
            ),
        ),
    ),
)
