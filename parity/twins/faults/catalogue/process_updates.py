"""Faults of several processes that lie between the sum of the gradients and the update."""

from parity.twins.faults.edits import Edits, joined, paddle, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC, _TWO = "Several processes", "two processes"
_GRADIENT = ("gradient/softmax/*",)

_PADDLE_SUMMED = "                paddle.distributed.all_reduce(paddle.Tensor(first))\n"
_PADDLE_REPORTED = "        *losses, stop = self._sum(report)\n"
_PADDLE_STATE = "state_of_local_rows(self.build.group, parts, inputs.rows, self.replicas)"
_PADDLE_CLIPPED = (
    "                self._clipped, self._norm = clip_by_global_norm(\n"
    "                    self._gradients, spec.training.clip_norm\n"
    "                )\n"
)
_PADDLE_GRADIENTS = (
    "                self._gradients = self._summed([gradient for _, gradient in pairs])\n"
)
_TF_BEFORE = "        losses = tf.where(is_own, loss, tf.zeros_like(loss))\n"
_TF_SUMMED = "        return gradients, summed\n"
_TF_STATE = (
    "        return state_of_local_rows(self.build.group, parts, inputs.rows, self.replicas)\n"
)
_TF_REDUCED = (
    "                gradients, losses = self._reduce(context, gradients, outputs.loss, feed)\n"
)
_TF_CLIPPED = "                clipped, norm = clip_by_global_norm(gradients, self.spec.training.clip_norm)\n"


def _in_paddle(*changes: tuple[str, str]) -> Edits:
    return paddle("strategies/data_parallel.py", *changes)


def _in_tensorflow(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/multi_worker.py", *changes)


def _after_sum(text: str) -> tuple[str, str]:
    """Return the edit that changes `mine`, Paddle's own gradients, and `total`, their sum.

    Both are NumPy arrays; the report at their end stays as it was summed.
    """
    return (
        _PADDLE_SUMMED,
        "                mine = np.array(first)\n"
        + _PADDLE_SUMMED
        + "                total, reported = np.array(first), np.array(summed)\n"
        + text
        + "                first.set(total, self._places[0])\n"
        "                summed.set(reported, self._places[0])\n",
    )


FAULTS = (
    Fault(
        "process-update-skipped",
        "the second process skips every update",
        _TOPIC,
        _TWO,
        ("replicas/weight/*",),
        _in_paddle(_after_sum("                total *= self._group.rank == 0\n"))
        | _in_tensorflow(
            (
                _TF_SUMMED,
                "        is_first = tf.equal(context.replica_id_in_sync_group, 0)\n"
                "        own = [tf.where(is_first, each, tf.zeros_like(each)) for each in gradients]\n"
                "        return own, summed\n",
            )
        ),
        unconfirmable_reason="the trace has the first process's weights alone, which are right",
    ),
    Fault(
        "process-norm-before-sum",
        "every process clips the sum by the norm that its own gradient had before",
        _TOPIC,
        _TWO,
        ("gradient_norm", "gradient_norm/*", "clipped_gradient/*"),
        joined(
            paddle(
                "strategies/synchronous_base.py",
                (
                    _PADDLE_GRADIENTS,
                    "                own = [gradient for _, gradient in pairs]\n"
                    "                _, own_norm = clip_by_global_norm(own, spec.training.clip_norm)\n"
                    "                own_norm.persistable = True\n" + _PADDLE_GRADIENTS,
                ),
                (
                    _PADDLE_CLIPPED,
                    "                limit = paddle.full([1], spec.training.clip_norm, own_norm.dtype)\n"
                    "                scale = limit / paddle.maximum(limit, own_norm)\n"
                    "                self._clipped = [paddle.scale(each, scale) for each in self._gradients]\n"
                    "                self._norm = own_norm\n",
                ),
            )
        )
        | tensorflow(
            "strategies/mirrored.py",
            (
                _TF_REDUCED,
                "                norm = tf.linalg.global_norm(gradients)\n" + _TF_REDUCED,
            ),
            (
                _TF_CLIPPED,
                "                limit = tf.constant(self.spec.training.clip_norm, norm.dtype)\n"
                "                clipped = [each * limit / tf.maximum(limit, norm) for each in gradients]\n",
            ),
        ),
        unconfirmable_reason="the gradient of one process by itself is not in the trace",
    ),
    Fault(
        "process-state-moved-on",
        "every process gives each of its rows the recurrent state of the row before",
        _TOPIC,
        _TWO,
        ("forward/c", "forward/h"),
        _in_paddle(
            (
                _PADDLE_STATE,
                "{\n"
                "            name: np.roll(array, 1, axis=0)\n"
                f"            for name, array in {_PADDLE_STATE}.items()\n"
                "        }",
            )
        )
        | tensorflow(
            "strategies/several_processes.py",
            (
                _TF_STATE,
                "        own = state_of_local_rows(self.build.group, parts, inputs.rows, self.replicas)\n"
                "        return {name: np.roll(array, 1, axis=0) for name, array in own.items()}\n",
            ),
        ),
        unconfirmable_reason="the oracle has one process, which joins no states",
    ),
    Fault(
        "process-half-precision",
        "the gradients are sent in half precision",
        _TOPIC,
        _TWO,
        _GRADIENT,
        _in_paddle(
            (
                _PADDLE_SUMMED,
                "                whole, reported = np.array(first), np.array(summed)\n"
                "                half = whole.astype(np.float16).astype(whole.dtype)\n"
                "                first.set(half, self._places[0])\n"
                "                summed.set(reported, self._places[0])\n" + _PADDLE_SUMMED,
            )
        )
        | _in_tensorflow(
            (
                _TF_BEFORE,
                "        half = [tf.cast(each, tf.float16) for each in gradients]\n"
                "        gradients = [tf.cast(each, loss.dtype) for each in half]\n"
                + _TF_BEFORE,
            )
        ),
    ),
    Fault(
        "process-own-gradient-twice",
        "every process adds its own gradient to the sum, in which it is already",
        _TOPIC,
        _TWO,
        _GRADIENT,
        _in_paddle(_after_sum("                total += mine\n"))
        | _in_tensorflow(
            (_TF_BEFORE, "        mine = list(gradients)\n" + _TF_BEFORE),
            (
                _TF_SUMMED,
                "        return [s + m for s, m in zip(gradients, mine, strict=True)], summed\n",
            ),
        ),
    ),
    Fault(
        "process-sum-a-step-late",
        "the second process uses the sum of the step before, as if it had not waited",
        _TOPIC,
        _TWO,
        ("replicas/weight/*",),
        _in_paddle(
            _after_sum(
                "                if self._group.rank > 0:\n"
                '                    before = getattr(self, "_before", np.zeros_like(total))\n'
                "                    self._before, total = total, before\n"
            )
        ),
        unconfirmable_reason="the trace has the first process's weights alone, which are right",
    ),
)
