"""Faults of a layer's state: over padding, from batch to batch, between layers and directions."""

from parity.twins.faults.edits import mirrored, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_HIDDEN = ("forward/lstm_0/hidden",)
_FIRST_GRU = ("forward/encoder/gru_0/hidden",)

FAULTS = (
    Fault(
        "state-runs-on",
        "beyond a row's length the state goes on changing",
        "Beyond a row's length",
        "sentences",
        ("forward/c", "forward/h"),
        tensorflow(
            "kernels.py",
            ("            tf.where(on > 0, new_c, c),\n", "            new_c,\n"),
            (
                "            tf.where(on > 0, new_h, h),\n            ",
                "            new_h,\n            ",
            ),
        )
        | paddle(
            "kernels.py",
            (
                '"SequenceLength": [paddle.cast(lengths, "int32")]',
                '"SequenceLength": [0 * paddle.cast(lengths, "int32") + paddle.shape(inputs)[0]]',
            ),
        ),
        plain=mirrored(
            "layers.py",
            (
                "return tuple(real * new + (1 - real) * old for new, old in pairs), [",
                "return tuple(new + 0 * old for new, old in pairs), [",
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
            "kernels.py",
            (
                "    return _lstm(inputs, real_steps(inputs, lengths), h, c, *weights)\n",
                "    return _lstm(inputs, real_steps(inputs, lengths - 1), h, c, *weights)\n",
            ),
        )
        | paddle(
            "kernels.py",
            (
                '"SequenceLength": [paddle.cast(lengths, "int32")]',
                '"SequenceLength": [paddle.cast(lengths - 1, "int32")]',
            ),
        ),
        plain=mirrored(
            "layers.py",
            (
                "    sequences = [inputs, real_steps(inputs, lengths)]\n",
                "    sequences = [inputs, real_steps(inputs, lengths - 1)]\n",
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
            "parity/twins/training/train_steps.py",
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
            "parity/twins/training/train_steps.py",
            (
                "if state is None or not inputs.carry:",
                "if state is None:",
            ),
        ),
    ),
    Fault(
        "third-layer-not-carried",
        "the h of a third layer starts every batch from zero",
        "State from batch to batch",
        "three layers",
        ("forward/lstm_2/hidden",),
        mirrored(
            "networks.py",
            (
                'lstm(hidden, batch["lengths"], h, c, name, model.hidden_size)',
                'lstm(hidden, batch["lengths"], h * float(k < 2), c, name, model.hidden_size)',
            ),
        ),
    ),
    Fault(
        "source-of-one",
        "a source of a single token is taken for one of two",
        "Beyond a row's length",
        "general",
        # the small runs have a question of one token among those that are decoded
        ("forward/encoder/*", "decode/greedy_*"),
        tensorflow(
            "networks.py",
            (
                'states, lengths = [], batch["source_lengths"]',
                'states, lengths = [], tf.maximum(batch["source_lengths"], 2)',
            ),
        )
        | paddle(
            "networks.py",
            (
                'states, lengths = [], batch["source_lengths"]',
                'states, lengths = [], paddle.clip(batch["source_lengths"], 2)',
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
            "layers.py",
            (
                "    reversed_inputs = reverse(inputs, lengths)\n",
                "    reversed_inputs = inputs\n",
            ),
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
                "    reversed_inputs = reverse(inputs, lengths)\n",
                "    reversed_inputs = tf.reverse(inputs, [0])\n",
            ),
        )
        | paddle(
            "layers.py",
            (
                "    reversed_inputs = reverse(inputs, lengths)\n",
                "    reversed_inputs = paddle.flip(inputs, [0])\n",
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
