"""Faults of mirrored variables: what replicas read, reduce and update, each its own copy."""

from parity.twins.faults.edits import Edits, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC = "Mirrored variables"
_GRADIENT = ("gradient/softmax/*",)
_COPIES = ("replicas/*",)

_NETWORK = "                outputs, tap = self._network(feed, tape)\n"
_OBJECTIVE = "                objective = tap.objective(outputs.loss)[0]\n"
_REDUCED = (
    "                gradients, losses = self._reduce(context, gradients, outputs.loss, feed)\n"
)
_SUM = '        return context.all_reduce("SUM", gradients), loss\n'
_UPDATED = "                update(self.spec.training, weights, clipped, self._variables, learning_rate)\n"
_RESULT = "strategy.experimental_local_results(value)[replica], results"


def _edited(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/mirrored.py", *changes)


def _of_first(*names: str) -> Edits:
    """Return edits that give every replica the first one's arrays of some names."""
    wanted = " or ".join(f"name.startswith({name!r})" for name in names)
    return _edited(
        (
            "            lambda context: feeds[context.replica_id_in_sync_group - self._own.start]\n",
            "            lambda context: own(context.replica_id_in_sync_group)\n",
        ),
        (
            "        per_replica = strategy.experimental_distribute_values_from_function(\n",
            "        def own(replica):\n"
            "            feed = dict(feeds[replica])\n"
            "            for name, array in feed.items():\n"
            f"                if {wanted}:\n"
            "                    sizes = tf.unstack(tf.shape(array))\n"
            "                    feed[name] = feeds[0][name][: sizes[0], : sizes[1]]\n"
            "            return feed\n\n"
            "        per_replica = strategy.experimental_distribute_values_from_function(\n",
        ),
    )


FAULTS = (
    Fault(
        "mirrored-rows-of-first",
        "every replica reads the first one's rows",
        _TOPIC,
        "mirrored",
        ("forward/embedded",),
        _of_first("tokens"),
    ),
    Fault(
        "mirrored-masks-of-first",
        "every replica drops out by the first one's masks",
        _TOPIC,
        "mirrored",
        ("forward/lstm_0/hidden",),
        _of_first("mask/"),
    ),
    Fault(
        "mirrored-not-reduced",
        "each replica updates its copy with its own gradient, which is not reduced",
        _TOPIC,
        "mirrored",
        _GRADIENT,
        _edited((_SUM, "        return gradients, loss\n")),
    ),
    Fault(
        "mirrored-mean",
        "the replicas' gradients are reduced to their mean, although losses are shares",
        _TOPIC,
        "mirrored",
        _GRADIENT,
        _edited((_SUM, _SUM.replace('"SUM"', '"MEAN"'))),
    ),
    Fault(
        "mirrored-reduced-twice",
        "gradients are reduced by hand, and once more by the optimiser",
        _TOPIC,
        "mirrored, adam",
        _GRADIENT,
        _edited((_REDUCED, 2 * _REDUCED)),
    ),
    Fault(
        "mirrored-loss-of-own-tokens",
        "each replica differentiates the mean over its own tokens, divided by the replicas",
        _TOPIC,
        "mirrored",
        _GRADIENT,
        _edited(
            (
                _OBJECTIVE,
                _OBJECTIVE + '                share = feed["scale"][0] * tf.cast(\n'
                '                    tf.reduce_sum(feed["lengths"]), objective.dtype\n'
                "                )\n"
                "                objective = objective / share / self.replicas\n",
            )
        ),
    ),
    Fault(
        "mirrored-table-not-reduced",
        "the embedding's sparse gradient is left out of the reduction",
        _TOPIC,
        "mirrored",
        ("gradient/embed/table",),
        _edited(
            (
                _SUM,
                '        reduced = context.all_reduce("SUM", gradients[1:])\n'
                "        return [gradients[0], *reduced], loss\n",
            )
        ),
    ),
    Fault(
        "mirrored-clipped-before",
        "each replica clips its own gradient before they are reduced",
        _TOPIC,
        "mirrored",
        _GRADIENT,
        _edited(
            (
                _REDUCED,
                "                gradients, _ = clip_by_global_norm(gradients, 0.05)\n"
                + _REDUCED,
            )
        ),
    ),
    Fault(
        "mirrored-norm-of-own",
        "each replica clips the reduced gradient by the norm of its own",
        _TOPIC,
        "mirrored",
        ("gradient_norm",),
        _edited(
            (_REDUCED, "                own = gradients\n" + _REDUCED),
            (
                _UPDATED,
                "                limit = self.spec.training.clip_norm\n"
                "                norm = tf.linalg.global_norm(own)\n"
                "                scale = limit / tf.maximum(tf.cast(limit, norm.dtype), norm)\n"
                "                clipped = [each * scale for each in gradients]\n" + _UPDATED,
            ),
        ),
        unconfirmable_reason="the gradient of one replica by itself is not in the trace",
    ),
    Fault(
        "mirrored-first-copy-alone",
        "the first replica's copy of the variables is updated, and no other",
        _TOPIC,
        "mirrored, adam",
        _COPIES,
        _edited(
            (
                _UPDATED,
                "                first = tf.equal(context.replica_id_in_sync_group, 0)\n"
                "                clipped = [each * tf.cast(first, each.dtype) for each in clipped]\n"
                + _UPDATED,
            )
        ),
        unconfirmable_reason="the trace has the first replica's weights alone, and these are right",
    ),
    Fault(
        "mirrored-updated-per-replica",
        "the update is applied once for each replica, as by an optimiser that all of them share",
        _TOPIC,
        "mirrored",
        ("weight/*",),
        _edited(
            (
                _UPDATED,
                "                for _ in range(self.replicas):\n    " + _UPDATED,
            )
        ),
    ),
    Fault(
        "mirrored-steps-per-replica",
        "Adam's step is counted once for each replica",
        _TOPIC,
        "mirrored, adam",
        ("optimizer/beta1_power", "optimizer/beta2_power"),
        _edited(
            (
                _UPDATED,
                _UPDATED + "                for name, beta in (\n"
                '                    ("optimizer/beta1_power", self.spec.training.beta1),\n'
                '                    ("optimizer/beta2_power", self.spec.training.beta2),\n'
                "                ):\n"
                "                    power = self._variables[name]\n"
                "                    power.assign(power * beta ** (self.replicas - 1))\n",
            )
        ),
    ),
    Fault(
        "mirrored-rate-times-replicas",
        "the learning rate is multiplied by the number of replicas",
        _TOPIC,
        "mirrored",
        ("weight/*",),
        _edited(
            (_UPDATED, _UPDATED.replace("learning_rate)", "learning_rate * self.replicas)"))
        ),
    ),
)
