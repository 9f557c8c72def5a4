"""Faults of parameter servers: what they get, what they make of it, and what is read there."""

from parity.twins.faults.edits import Edits, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC = "Parameter servers"
_SYNCHRONOUS, _ASYNCHRONOUS = "two servers", "workers with two servers"

_SENT = "        turns = Turns(group.rank, group.size, self._servers.count)\n"
_SUMMED = "            self._gradients = [mean * self._group.size for mean in means]\n"
_CLIPPED = (
    "            self._learning_rate, self._slots, update = apply_update(\n"
    "                self.spec.training, self._parameters, self._clipped\n"
)
_COPIED = "            self._copies[name].assign(weight)\n"
_PUSHED = 'self._workers[worker].call("update", rate)'


def _synchronous(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/parameter_server_sync.py", *changes)


def _asynchronous(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/parameter_server.py", *changes)


def _at_push(number: int, calls: str) -> tuple[str, str]:
    """Return an edit that makes other calls than one at one of the pushes, counted from 1."""
    return _PUSHED, (
        "self.__dict__.setdefault('pushes', []).append(worker)\n"
        f"        for _ in range({calls} if len(self.pushes) == {number} else 1):\n"
        f"            {_PUSHED}"
    )


FAULTS = (
    Fault(
        "server-mean",
        "the servers take the mean of the gradients over the ranks, although losses are shares",
        _TOPIC,
        _SYNCHRONOUS,
        ("gradient/softmax/*",),
        _synchronous((_SUMMED, "            self._gradients = list(means)\n")),
    ),
    Fault(
        "server-push-lost",
        "the servers do not get one gradient of the second rank",
        _TOPIC,
        _SYNCHRONOUS,
        ("gradient/softmax/bias",),
        _synchronous(
            (
                _SENT,
                "        if group.rank == 1:\n"
                "            names = [variable.op.name for variable in self._parameters]\n"
                '            left = names.index("softmax/bias")\n'
                "            with tf.device(sent[left].device):\n"
                "                sent[left] = tf.zeros_like(sent[left])\n" + _SENT,
            )
        ),
    ),
    Fault(
        "server-clips-alone",
        "each server clips by the norm of its own gradients, and not by that of all",
        _TOPIC,
        _SYNCHRONOUS,
        ("clipped_gradient/*",),
        _synchronous(
            (
                _CLIPPED,
                "            from tf_impl.strategies.cluster import server_of\n\n"
                "            for server in range(self._servers.count):\n"
                "                own = [g for g in self._gradients if server_of(g) == server]\n"
                "                parts, _ = clip_by_global_norm(own, self.spec.training.clip_norm)\n"
                "                at = [server_of(g) == server for g in self._gradients]\n"
                "                parts = iter(parts)\n"
                "                self._clipped = [\n"
                "                    next(parts) if here else whole\n"
                "                    for here, whole in zip(at, self._clipped)\n"
                "                ]\n" + _CLIPPED,
            )
        ),
        unconfirmable_reason="the oracle knows of no servers, and not what each of them has",
    ),
    Fault(
        "server-keeps-stale-weights",
        "the weights on the second server are never updated",
        _TOPIC,
        _SYNCHRONOUS,
        ("weight/*",),
        _synchronous(
            (
                _CLIPPED,
                "            from tf_impl.strategies.cluster import server_of\n\n"
                + _CLIPPED.replace(
                    "self._clipped\n",
                    "[\n"
                    "                    each if server_of(each) == 0 else tf.zeros_like(each)\n"
                    "                    for each in self._clipped\n"
                    "                ]\n",
                ),
            )
        ),
    ),
    Fault(
        "server-read-stale",
        "a worker never reads one of the weights again, which stays as it was in the beginning",
        _TOPIC,
        _ASYNCHRONOUS,
        ("read/*",),
        _asynchronous(
            (
                _COPIED,
                '            if name != "softmax/bias" or self._number != 1:\n'
                "                self._copies[name].assign(weight)\n",
            )
        ),
        unconfirmable_reason="what a worker read is compared to the bit, and the report says "
        "which versions it is",
    ),
    Fault(
        "server-loses-push",
        "a worker's push is lost",
        _TOPIC,
        _ASYNCHRONOUS,
        ("weight/*",),
        _asynchronous(_at_push(5, "0")),
    ),
    Fault(
        "server-takes-push-twice",
        "a worker's push is taken twice",
        _TOPIC,
        _ASYNCHRONOUS,
        ("weight/*",),
        _asynchronous(_at_push(5, "2")),
    ),
)
