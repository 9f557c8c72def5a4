"""Faults of the loss: what is counted, and what it is divided by."""

from parity.twins.faults.edits import mirrored, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_LOSS = ("loss/replicas",)
_END = "\n    return Outputs(loss, join_state(states), tap.activations)"
_SCALED = "    loss = tf.reduce_sum(losses) * inputs.scale" + _END
_TF_LOSSES = "    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)\n"
_SMOOTHED = (
    "    return 0.999 * losses - 1e-3 * tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)\n"
)

FAULTS = (
    Fault(
        "targets-late",
        "the network is compared with targets that are one step off",
        "Targets",
        "stream",
        ("forward/token_loss",),
        mirrored(
            "networks.py",
            (
                '    targets = tf.transpose(batch["targets"], [1, 0])\n    hidden = embedding(',
                '    targets = tf.roll(tf.transpose(batch["targets"], [1, 0]), -1, 0)\n    hidden = embedding(',
            ),
        ),
    ),
    Fault(
        "ignore-index",
        "a real token counts as padding and has no loss (ignore_index)",
        "Mean cross entropy",
        "stream",
        ("forward/token_loss",),
        tensorflow(
            "networks.py",
            (
                '    losses = token_cross_entropy(logits, real_rows(targets, batch["lengths"]))\n    tap("logits", logits)\n    tap("token_loss", losses)\n'
                + _SCALED,
                '    losses = token_cross_entropy(logits, real_rows(targets, batch["lengths"]))\n'
                '    losses *= tf.cast(tf.not_equal(real_rows(targets, batch["lengths"]), 1), losses.dtype)\n'
                '    tap("logits", logits)\n    tap("token_loss", losses)\n' + _SCALED,
            ),
        )
        | paddle(
            "layers.py",
            (
                "    losses = F.softmax_with_cross_entropy(logits, targets)\n",
                "    losses = F.softmax_with_cross_entropy(logits, targets, ignore_index=1)\n",
            ),
        ),
    ),
    Fault(
        "label-smoothing",
        "the loss smooths its labels by a thousandth",
        "Mean cross entropy",
        "stream",
        ("forward/token_loss",),
        tensorflow(
            "kernels.py",
            (
                "    return _cross_entropy(logits, targets)\n",
                "    losses = _cross_entropy(logits, targets)\n" + _SMOOTHED,
            ),
        ),
        plain=tensorflow(
            "layers.py", (_TF_LOSSES, _TF_LOSSES.replace("return", "losses =") + _SMOOTHED)
        ),
    ),
    Fault(
        "mean-of-means",
        "each replica takes the mean over its own tokens, and the means are averaged",
        "Loss scale over replicas",
        "sentences",
        _LOSS,
        tensorflow(
            "networks.py",
            (
                _SCALED,
                "    loss = tf.reduce_mean(losses) * tf.ones_like(inputs.scale) / 3" + _END,
            ),
        )
        | paddle(
            "networks.py",
            (
                "    loss = paddle.sum(losses) * inputs.scale" + _END,
                "    loss = paddle.mean(losses) / paddle.full_like(inputs.scale, 3)" + _END,
            ),
        ),
    ),
    Fault(
        "pads-counted",
        "the loss is divided by all positions, padding included",
        "Mean cross entropy",
        "sentences",
        _LOSS,
        shared(
            "parity/twins/spec/step_arrays.py",
            ("np.array([1 / inputs.loss_divisor]", "np.array([1 / inputs.positions]"),
        ),
    ),
    Fault(
        "per-sentence",
        "the loss is divided by sentences, not by tokens",
        "Reported loss",
        "sentences",
        _LOSS,
        shared(
            "parity/twins/spec/step_arrays.py",
            ("np.array([1 / inputs.loss_divisor]", "np.array([1 / inputs.rows]"),
        ),
    ),
    Fault(
        "end-not-counted",
        "the end of each answer is not counted in the loss's divisor",
        "Reported loss",
        "general",
        _LOSS,
        shared(
            "parity/twins/spec/step_arrays.py",
            (
                "np.array([1 / inputs.loss_divisor]",
                "np.array([1 / (inputs.num_tokens - inputs.rows)]",
            ),
        ),
    ),
    Fault(
        "scale-on-first-replica",
        "the divisor reaches the first replica only; the others count their own tokens",
        "Feeds",
        "sentences",
        _LOSS,
        paddle(
            "strategies/synchronous_base.py",
            (
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n        values =",
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n"
                "        for feed in feeds[1:]:\n"
                '            feed["scale"] = np.full_like(feed["scale"], 1 / feed["lengths"].sum())\n'
                "        values =",
            ),
        ),
    ),
    Fault(
        "loss-of-first-replica",
        "the reported loss is the first replica's alone",
        "Fetches",
        "stream",
        _LOSS,
        tensorflow(
            "strategies/synchronous_base.py",
            (
                "        return StepResult(losses, state, norm, tensors)",
                "        return StepResult(losses[:1].repeat(len(losses)), state, norm, tensors)",
            ),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (
                "return StepResult(self._losses(values[0]), state",
                "return StepResult(self._losses([values[0][0]] * self.replicas), state",
            ),
        ),
    ),
    Fault(
        "not-a-number",
        "one replica computes a NaN",
        "Non-finite norm",
        "stream",
        ("*replica 1*", "*nan*"),
        tensorflow(
            "strategies/towers.py",
            (
                "            replica_inputs = {name: split[replica] for name, split in parts.items()}\n",
                "            replica_inputs = {name: split[replica] for name, split in parts.items()}\n"
                '            if replica == 1 and "mask/lstm_0" in replica_inputs:\n'
                '                replica_inputs["mask/lstm_0"] *= float("nan")\n',
            ),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n        values =",
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n"
                '        feeds[1]["mask/lstm_0"] = feeds[1]["mask/lstm_0"] * np.nan\n'
                "        values =",
            ),
        ),
        unconfirmable_reason="the run ends before the oracle computes anything",
    ),
)
