"""Faults of model parallelism: how the work of micro-batches and replicas becomes one step."""

from parity.twins.faults.edits import paddle, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC = "Micro-batches"
_REPLICAS = "Replicas of stages"
_STAGES = "replicas of stages"
_GRADIENT = ("gradient/softmax/*",)
_LOSS = ("loss/replicas",)

_SUMMED = "        return summed_gradients(losses, parameters)\n"
_FUNCTION = "                outputs.append(function(**own, **shared))\n"
_NETWORK = "            network = super()._network(builder, inputs)\n"
_ADDED = "    for gradient in stage.gradients:\n        total = _create_sum("
_PARTS = "            if not all(map(len, feed.values())):\n"
_TOTALS = "        parts = [_create_sum(block, gradient, total) for total in totals]\n"
_PADDLE_LOSSES = "np.concatenate(parts).reshape(-1, self.micro_batches).sum(axis=1)"
_LOSSES = 'np.concatenate(values["losses"]).reshape(-1, self.micro_batches).sum(axis=1)'


def _combined(losses: str) -> tuple[str, str]:
    """Return an edit that differentiates other losses in TensorFlow's strategy `layers`."""
    return _SUMMED, _SUMMED.replace("(losses,", f"({losses},")


def _objective(factor: str) -> tuple[str, str]:
    """Return an edit that divides what Paddle's strategy `layers` differentiates."""
    return (
        _NETWORK,
        "            outputs, objective = super()._network(builder, inputs)\n"
        f"            network = outputs, objective / {factor}\n",
    )


def _of_first(*names: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return edits, for TensorFlow and Paddle, that feed arrays of a first micro-batch."""
    wanted = " or ".join(f"name.startswith({name!r})" for name in names)
    of_tensorflow = (
        _FUNCTION,
        "                first = tower - micro_batch\n"
        "                for name, tensor in own.items():\n"
        f"                    if {wanted}:\n"
        "                        sizes = tf.unstack(tf.shape(tensor))\n"
        "                        whole = parts[name][first]\n"
        "                        own[name] = whole[: sizes[0], : sizes[1]]\n" + _FUNCTION,
    )
    of_paddle = (
        _PARTS,
        "            whole = feeds[self._parts.index((replica, 0))]\n"
        "            for name in list(feed):\n"
        f"                if {wanted}:\n"
        "                    rows, time = feed[name].shape[:2]\n"
        "                    feed = feed | {name: whole[name][:rows, :time]}\n" + _PARTS,
    )
    return of_tensorflow, of_paddle


_MASKS, _PADDLE_MASKS = _of_first("mask/")
_TARGETS, _PADDLE_TARGETS = _of_first("targets")

FAULTS = (
    Fault(
        "micro-batch-counted-twice",
        "the gradient of one micro-batch is added twice",
        _TOPIC,
        _STAGES,
        _GRADIENT,
        tensorflow("strategies/layers.py", _combined("[*losses, losses[-1]]"))
        | paddle(
            "strategies/stage_programs.py",
            (
                'block.append_op(type="assign", inputs={"X": gradient}',
                'block.append_op(type="sum", inputs={"X": [gradient, gradient]}',
            ),
        ),
    ),
    Fault(
        "last-micro-batch-alone",
        "each micro-batch's gradient replaces that of the one before, and is not added to it",
        _TOPIC,
        _STAGES,
        _GRADIENT,
        tensorflow(
            "strategies/layers.py",
            _combined("losses[self.micro_batches - 1 :: self.micro_batches]"),
        )
        | paddle("strategies/pipeline.py", ("first=micro_batch == 0", "first=True")),
    ),
    Fault(
        "first-micro-batch-alone",
        "the update uses the gradient of each replica's first micro-batch alone",
        _TOPIC,
        _STAGES,
        _GRADIENT,
        tensorflow("strategies/layers.py", _combined("losses[:: self.micro_batches]"))
        | paddle(
            "strategies/stage_programs.py",
            (_ADDED, _ADDED.replace("stage.gradients", "stage.gradients if first else ()")),
        ),
    ),
    Fault(
        "micro-batches-averaged",
        "the gradients of the micro-batches are averaged, although their losses are shares",
        _TOPIC,
        "stages",
        _GRADIENT,
        tensorflow(
            "strategies/layers.py", _combined("[loss / self.micro_batches for loss in losses]")
        )
        | paddle("strategies/layers.py", _objective("self.micro_batches")),
    ),
    Fault(
        "micro-batch-means",
        "each micro-batch's loss is divided by its own tokens and by the number of micro-batches",
        _TOPIC,
        _STAGES,
        _LOSS,
        tensorflow(
            "strategies/layers.py",
            (
                _FUNCTION,
                '                tokens = tf.reduce_sum(own["lengths"])\n'
                "                count = tf.cast(tf.maximum(tokens, 1) * towers, "
                'shared["scale"].dtype)\n'
                '                shared["scale"] = tf.reshape(1 / count, [1])\n' + _FUNCTION,
            ),
        )
        | paddle(
            "strategies/pipeline.py",
            (
                _PARTS,
                '            count = max(feed["lengths"].sum(), 1) * len(self._parts)\n'
                '            scale = np.full([1], 1 / count, feed["scale"].dtype)\n'
                '            feed = feed | {"scale": scale}\n' + _PARTS,
            ),
        ),
    ),
    Fault(
        "loss-of-last-micro-batch",
        "the loss that is reported is that of each replica's last micro-batch",
        _TOPIC,
        _STAGES,
        _LOSS,
        tensorflow(
            "strategies/synchronous_base.py",
            (_LOSSES, _LOSSES.replace(".sum(axis=1)", "[:, -1]")),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (_PADDLE_LOSSES, _PADDLE_LOSSES.replace(".sum(axis=1)", "[:, -1]")),
        ),
    ),
    Fault(
        "micro-batch-losses-averaged",
        "the loss that is reported is the average over the micro-batches, not their sum",
        _TOPIC,
        _STAGES,
        _LOSS,
        tensorflow(
            "strategies/synchronous_base.py",
            (_LOSSES, _LOSSES.replace("sum(axis", "mean(axis")),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (_PADDLE_LOSSES, _PADDLE_LOSSES.replace("sum(axis", "mean(axis")),
        ),
    ),
    Fault(
        "masks-of-first-micro-batch",
        "every micro-batch of a replica has the dropout masks of the first one",
        _TOPIC,
        _STAGES,
        ("forward/lstm_0/hidden",),
        tensorflow("strategies/layers.py", _MASKS)
        | paddle("strategies/pipeline.py", _PADDLE_MASKS),
    ),
    Fault(
        "targets-of-first-micro-batch",
        "the last stage is fed the targets of the first micro-batch for all of them",
        _TOPIC,
        _STAGES,
        ("forward/token_loss",),
        tensorflow("strategies/layers.py", _TARGETS)
        | paddle("strategies/pipeline.py", _PADDLE_TARGETS),
    ),
    Fault(
        "state-of-micro-batch-before",
        "a micro-batch goes on from the recurrent state that the one before it left",
        _TOPIC,
        _STAGES,
        ("forward/lstm_0/hidden",),
        tensorflow(
            "strategies/layers.py",
            (
                _FUNCTION,
                "                if micro_batch:\n"
                '                    rows = tf.shape(own["lengths"])[0]\n'
                "                    left = outputs[-1][0].state\n"
                "                    for name, part in left.items():\n"
                "                        own[name] = tf.stop_gradient(part[:rows])\n"
                + _FUNCTION,
            ),
        ),
    ),
    Fault(
        "first-replica-of-stages-alone",
        "the update uses the gradient of the first replica's stages alone",
        _REPLICAS,
        _STAGES,
        _GRADIENT,
        tensorflow("strategies/layers.py", _combined("losses[: self.micro_batches]"))
        | paddle(
            "strategies/stage_programs.py",
            (_TOTALS, _TOTALS.replace("in totals]", "in totals[:1]]")),
        ),
    ),
    Fault(
        "replicas-of-stages-averaged",
        "gradients are summed over micro-batches, but averaged over replicas",
        _REPLICAS,
        _STAGES,
        _GRADIENT,
        tensorflow(
            "strategies/layers.py", _combined("[loss / self.replicas for loss in losses]")
        )
        | paddle("strategies/layers.py", _objective("self.replicas")),
    ),
    Fault(
        "table-of-first-replica",
        "the embedding's gradient is not summed over the replicas of its stage",
        _REPLICAS,
        _STAGES,
        ("gradient/embed/table",),
        tensorflow(
            "strategies/layers.py",
            (
                _SUMMED,
                "        gradients = summed_gradients(losses, parameters)\n"
                "        first = summed_gradients(losses[: self.micro_batches], parameters)\n"
                "        return [first[0], *gradients[1:]]\n",
            ),
        )
        | paddle(
            "strategies/stage_programs.py",
            (
                _TOTALS,
                '        totals = totals[:1] if gradient.startswith("embed/") else totals\n'
                + _TOTALS,
            ),
        ),
    ),
    Fault(
        "clipped-per-replica-of-stages",
        "each replica clips the sum over its own micro-batches before the replicas are summed",
        _REPLICAS,
        _STAGES,
        _GRADIENT,
        tensorflow(
            "strategies/layers.py",
            (
                _SUMMED,
                "        from tf_impl.optimizers import clip_by_global_norm\n\n"
                "        each = []\n"
                "        for first in range(0, len(losses), self.micro_batches):\n"
                "            own = losses[first : first + self.micro_batches]\n"
                "            own = summed_gradients(own, parameters)\n"
                "            each.append(clip_by_global_norm(own, 0.05)[0])\n"
                "        return [tf.add_n(list(parts)) for parts in zip(*each)]\n",
            ),
        ),
    ),
)
