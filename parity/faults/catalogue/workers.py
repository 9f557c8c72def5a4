"""Faults of asynchronous training: what a worker reads, keeps and applies, and when."""

from parity.faults.edits import Edits, paddle, shared, tensorflow
from parity.faults.fault import Fault

_TOPIC = "Asynchronous updates"
_FORWARD = ("forward/*",)
_WEIGHT = ("weight/*",)
_WEIGHTS_OF_OTHERS = "the trace does not have what the other workers computed meanwhile"

_READ = "self._session.run(self._workers[worker].read)"
_PADDLE_READ = "self._workers[worker].read()"
_UPDATE = "self._run(own.update, {own.learning_rate: learning_rate})"
_PADDLE_UPDATE = "self._workers[worker].update()"
_PART = "        part = self._batches.part(worker.step, number)\n"


def _workers(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/asynchronous.py", *changes)


def _paddle_workers(*changes: tuple[str, str]) -> Edits:
    return paddle("strategies/asynchronous.py", *changes)


def _but_once(call: str, skipped: int) -> tuple[str, str]:
    """Return an edit that leaves a call out at one of its times."""
    count = f"self.__dict__.setdefault('calls', []).append(1) or len(self.calls) == {skipped}"
    return call, f"{count} or {call}"


FAULTS = (
    Fault(
        "stale-read",
        "a worker goes on with the weights of its last read, where the schedule has another",
        _TOPIC,
        "two workers",
        _FORWARD,
        _workers(_but_once(_READ, 5)) | _paddle_workers(_but_once(_PADDLE_READ, 5)),
        unconfirmable_reason="the weights of earlier reads are not kept once a worker reads anew",
    ),
    Fault(
        "torn-read",
        "a read does not wait for the last of the weights",
        _TOPIC,
        "two workers",
        _FORWARD,
        _workers(
            (
                "for copy, variable in zip(own, self.shared, strict=True)\n            )\n        )\n"
                "        with tf1.variable_scope(scope):\n            kept",
                "for copy, variable in zip(own[:-1], self.shared[:-1], strict=True)\n"
                "            )\n        )\n"
                "        with tf1.variable_scope(scope):\n            kept",
            )
        ),
        unconfirmable_reason="x",
    ),
)
