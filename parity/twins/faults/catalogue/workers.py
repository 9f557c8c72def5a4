"""Faults of asynchronous training: what a worker reads, keeps and applies, and when."""

from parity.twins.faults.edits import Edits, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC = "Asynchronous updates"
_READ_WEIGHTS = ("read/*",)
_WEIGHT = ("weight/*",)
_READ_REPORTED = (
    "what a worker read is compared to the bit, and the report says which versions it is"
)

_READ = "self._run(self._workers[worker].read, {})"
_PADDLE_READ = "self._workers[worker].read()"
_UPDATE = "self._run(own.update, {own.learning_rate: learning_rate})"
_PADDLE_UPDATE = "self._workers[worker].update()"
_CLASS = "    def read(self, worker):\n"
_RATE = "rate = learning_rate(strategy.spec.training, worker.step // self._per_epoch)\n"
_STATE = "        if state is None or not part.inputs.carry:\n"
_KEPT = "        with tf1.variable_scope(scope):\n            kept = [\n"
_SLOTS = """        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            self.learning_rate, self.slots, self.update = apply_update(
"""
_PADDLE_COPIED = "        for name in self._parameters:\n            shared = "
_PADDLE_APPLIED = "        for name in self._kept:\n            gradient = "
_PADDLE_SHARED = "        return _Shared(self._scope, self.replicas)\n"


def _workers(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/asynchronous.py", *changes)


def _paddle_workers(*changes: tuple[str, str]) -> Edits:
    return paddle("strategies/asynchronous.py", *changes)


def _but_once(call: str, skipped: int) -> tuple[str, str]:
    """Return an edit that leaves a call out at one of its times."""
    count = f"self.__dict__.setdefault('calls', []).append(1) or len(self.calls) == {skipped}"
    return call, f"{count} or {call}"


def _ahead(read: str, update: str) -> tuple[tuple[str, str], ...]:
    """Return edits that read a worker's weights for its next step before its own update."""
    return (
        (_CLASS, "    begun = frozenset()\n\n" + _CLASS),
        (
            read,
            "if worker not in self.begun:\n"
            f"            {read}\n"
            "        self.begun = self.begun | {worker}",
        ),
        (update, f"{read}\n        {update}"),
    )


FAULTS = (
    Fault(
        "stale-read",
        "a worker goes on with the weights of its last read, where the schedule has a new one",
        _TOPIC,
        "two workers",
        _READ_WEIGHTS,
        _workers(_but_once(_READ, 5)) | _paddle_workers(_but_once(_PADDLE_READ, 5)),
        unconfirmable_reason=_READ_REPORTED,
    ),
    Fault(
        "read-before-own-update",
        "a worker reads the weights for its next step before it applies its own update",
        _TOPIC,
        "two workers",
        _READ_WEIGHTS,
        _workers(*_ahead(_READ, _UPDATE))
        | _paddle_workers(*_ahead(_PADDLE_READ, _PADDLE_UPDATE)),
        unconfirmable_reason=_READ_REPORTED,
    ),
    Fault(
        "torn-read",
        "a read that no lock protects copies the first of the weights, and leaves the others",
        _TOPIC,
        "two workers",
        _READ_WEIGHTS,
        _workers(
            (
                _READ,
                "own = self._workers[worker]\n"
                "        own.reads = getattr(own, 'reads', 0) + 1\n"
                "        torn = own.reads == 3\n"
                "        self._session.run(own.torn if torn else own.read)",
            ),
            (
                _KEPT,
                "        self.torn = tf.group(\n"
                "            *(\n"
                "                copy.assign(variable.read_value()).op\n"
                "                for copy, variable in zip(own[:2], self.shared[:2])\n"
                "            )\n"
                "        )\n" + _KEPT,
            ),
        )
        | _paddle_workers(
            (
                _PADDLE_COPIED,
                "        self.reads = getattr(self, 'reads', 0) + 1\n"
                + _PADDLE_COPIED.replace(
                    "parameters:", "parameters[: 2 if self.reads == 3 else None]:"
                ),
            )
        ),
        unconfirmable_reason=_READ_REPORTED,
    ),
    Fault(
        "lost-update",
        "an update is lost",
        _TOPIC,
        "two workers",
        _WEIGHT,
        _workers(_but_once(_UPDATE, 6)) | _paddle_workers(_but_once(_PADDLE_UPDATE, 6)),
    ),
    Fault(
        "update-of-own-copy",
        "a worker updates its own copy and writes it back, over the updates since its read",
        _TOPIC,
        "two workers",
        _WEIGHT,
        _workers(
            (_UPDATE, f"self._session.run(own.back)\n        {_UPDATE}"),
            (
                _KEPT,
                "        self.back = tf.group(\n"
                "            *(\n"
                "                variable.assign(copy.read_value()).op\n"
                "                for copy, variable in zip(own, self.shared)\n"
                "            )\n"
                "        )\n" + _KEPT,
            ),
        )
        | _paddle_workers(
            (
                _PADDLE_APPLIED,
                "        for name in self._parameters:\n"
                "            own = self._own.find_var(name).get_tensor()\n"
                "            shared = self._shared.find_var(name).get_tensor()\n"
                "            shared._copy_from(own, self._place)\n" + _PADDLE_APPLIED,
            )
        ),
    ),
    Fault(
        "update-applied-twice",
        "a worker's update is applied twice",
        _TOPIC,
        "two workers",
        _WEIGHT,
        _workers((_UPDATE, f"{_UPDATE}\n        {_UPDATE}"))
        | _paddle_workers((_PADDLE_UPDATE, f"{_PADDLE_UPDATE}\n        {_PADDLE_UPDATE}")),
    ),
    Fault(
        "worker-does-not-clip",
        "a worker keeps its gradient before clipping for the update",
        _TOPIC,
        "two workers",
        _WEIGHT,
        _workers(
            ("zip(kept, self.clipped, strict=True)", "zip(kept, self.gradients, strict=True)")
        ),
    ),
    Fault(
        "workers-averaged",
        "a worker's gradient is divided by the number of workers, as if they took one step",
        _TOPIC,
        "two workers",
        ("gradient/softmax/*",),
        _workers(
            (
                "[tap.objective(self.outputs.loss)[0]]",
                "[tap.objective(self.outputs.loss)[0] / strategy.replicas]",
            )
        )
        | _paddle_workers(
            (
                _CLASS,
                "    def _network(self, builder, inputs):\n"
                "        outputs, objective = super()._network(builder, inputs)\n"
                "        return outputs, objective / self.replicas\n\n" + _CLASS,
            )
        ),
    ),
    Fault(
        "steps-of-first-worker",
        "Adam's step is counted by the updates of one worker alone",
        _TOPIC,
        "three workers, adam",
        ("optimizer/beta1_power", "optimizer/beta2_power"),
        tensorflow(
            "optimizers.py",
            (
                "    return tf.group(*updates, *powers)\n",
                '    tf1.add_to_collection("made", powers[0])\n'
                '    first = len(tf1.get_collection("made")) == 1\n'
                "    return tf.group(*updates, *(powers if first else ()))\n",
            ),
        )
        | _paddle_workers(
            (
                _PADDLE_SHARED,
                "        for worker in self._workers[1:]:\n"
                "            block = worker._update.global_block()\n"
                '            for op in [op for op in block.ops if op.type == "adam"]:\n'
                '                for slot in ("Beta1PowOut", "Beta2PowOut"):\n'
                "                    (name,) = op.output(slot)\n"
                "                    unused = block.create_var(\n"
                '                        name=f"{name}/unused", dtype=block.var(name).dtype\n'
                "                    )\n"
                "                    op._rename_output(name, unused.name)\n" + _PADDLE_SHARED,
            )
        ),
    ),
    Fault(
        "moments-per-worker",
        "each worker has moments and powers of its own, as with an Adam for each",
        _TOPIC,
        "three workers, adam",
        ("optimizer/*",),
        _workers(
            (
                _SLOTS,
                _SLOTS.replace("tf1.get_variable_scope()", "scope"),
            ),
            (
                _CLASS,
                "    def load(self, snapshot):\n"
                "        super().load(snapshot)\n"
                "        for own in self._workers[1:]:\n"
                "            for name, variable in own.slots.items():\n"
                "                variable.load(snapshot[name], self._session)\n\n" + _CLASS,
            ),
        ),
        unconfirmable_reason="the trace has the optimiser's state once, not for each worker",
    ),
    Fault(
        "worker-starts-from-zero",
        "a worker starts every batch from a zero state",
        _TOPIC,
        "two workers",
        ("forward/lstm_0/hidden",),
        shared(
            "parity/twins/training/asynchronous_steps.py",
            (_STATE, _STATE.replace("state is None", "self._lock")),
        ),
    ),
    Fault(
        "masks-of-first-worker",
        "every worker has the dropout masks of the first one's rows",
        _TOPIC,
        "two workers",
        ("forward/lstm_0/hidden",),
        shared(
            "parity/twins/spec/worker_rows.py",
            (
                "{name: mask[first:stop] for name, mask in inputs.masks.items()}",
                "{name: mask[: stop - first] for name, mask in inputs.masks.items()}",
            ),
        ),
    ),
    Fault(
        "rate-by-steps-of-all",
        "the learning rate decays by the steps of all workers together",
        _TOPIC,
        "two workers",
        ("batch/learning_rate",),
        shared(
            "parity/twins/training/asynchronous_steps.py",
            (_RATE, _RATE.replace("worker.step //", "worker.step * len(self._workers) //")),
        ),
    ),
)
