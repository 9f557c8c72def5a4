"""Faults of checkpoints: what is saved, and what a resumed training does with it."""

from parity.twins.faults.edits import shared
from parity.twins.faults.fault import Fault

_LOOP, _STEPS = "parity/twins/training/loop.py", "parity/twins/training/train_steps.py"
_FILE = "parity/twins/training/checkpoint.py"
_ANY = ("forward/*", "loss/*", "gradient/*", "optimizer/*", "weight*")

_LOAD = "        self.strategy.load(checkpoint.snapshot)\n"
_LOADED = "        self.step, self.state = checkpoint.step, checkpoint.state\n"
_SAVED = "                self.step,\n                snapshot,\n"


def _loading(changed: str) -> tuple[str, str]:
    """Return an edit that changes some of what is loaded; `old` are the checkpoint's tensors."""
    return (
        _LOAD,
        "        from parity.twins.spec.initial import initial_snapshot\n\n"
        "        old, first = dict(checkpoint.snapshot), initial_snapshot(self.spec)\n"
        f"        self.strategy.load(old | {changed})\n",
    )


FAULTS = (
    Fault(
        "saved-an-update-late",
        "a checkpoint holds the weights before the last update",
        "Checkpoints",
        "stream",
        _ANY,
        shared(
            _LOOP,
            (
                "        snapshot, state = self._checked_snapshot(), self.state\n",
                "        snapshot, state = self._before, self.state\n",
            ),
            (
                "        inputs, result, rate = step.inputs, step.result, step.learning_rate\n",
                "        inputs, result, rate = step.inputs, step.result, step.learning_rate\n"
                '        self._before = getattr(self, "_after_step", self.strategy.snapshot())\n'
                "        self._after_step = self.strategy.snapshot()\n",
            ),
        ),
        check="resume",
    ),
    Fault(
        "saved-as-the-next-step",
        "a checkpoint counts one step too many, so that a batch is left out",
        "Checkpoints",
        "sentences",
        (*_ANY, "batch/*"),
        shared(_LOOP, (_SAVED, "                self.step + 1,\n                snapshot,\n")),
        check="resume",
    ),
    Fault(
        "saved-as-the-last-step",
        "a checkpoint counts one step too few, so that a batch is trained on twice",
        "Checkpoints",
        "general",
        (*_ANY, "batch/*"),
        shared(_LOOP, (_SAVED, "                self.step - 1,\n                snapshot,\n")),
        check="resume",
    ),
    Fault(
        "powers-lost-on-load",
        "a resumed training starts with the powers of Adam's betas of the first step",
        "Checkpoints",
        "sentences",
        ("optimizer/*", "weight/*"),
        shared(
            _LOOP,
            _loading('{n: first[n] for n in first if n.startswith("optimizer/beta")}'),
        ),
        check="resume",
    ),
    Fault(
        "moments-lost-on-load",
        "a resumed training starts with moments of zero",
        "Checkpoints",
        "general",
        ("optimizer/*", "weight/*"),
        shared(_LOOP, _loading('{n: first[n] for n in first if n.endswith(("/m", "/v"))}')),
        check="resume",
    ),
    Fault(
        "moments-exchanged-on-load",
        "a resumed training takes Adam's first moment for the second, and the second for the first",
        "Checkpoints",
        "sentences",
        ("optimizer/*", "weight/*"),
        shared(
            _LOOP,
            _loading(
                # a second moment below zero would have no root
                '{n[:-1] + "mv"[n[-1] == "m"]: abs(a) for n, a in old.items()'
                ' if n.endswith(("/m", "/v"))}'
            ),
        ),
        check="resume",
    ),
    Fault(
        "moments-doubled-in-the-file",
        "one framework writes and reads Adam's second moment at twice its value",
        "Checkpoints",
        "general",
        ("optimizer/*", "weight/*"),
        shared(
            _LOOP,
            _loading('{n: a / 2 for n, a in old.items() if n.endswith("/v")}'),
            (
                "        snapshot, state = self._checked_snapshot(), self.state\n",
                "        state, snapshot = self.state, {\n"
                '            name: array * (2 if name.endswith("/v") else 1)\n'
                "            for name, array in self._checked_snapshot().items()\n"
                "        }\n",
            ),
        ),
        check="resume",
    ),
    Fault(
        "layer-not-restored",
        "a resumed training starts with the initial bias of the projection",
        "Checkpoints",
        "scaled, fed",
        _ANY,
        shared(_LOOP, _loading('{"weight/softmax/bias": first["weight/softmax/bias"]}')),
        check="resume",
    ),
    Fault(
        "state-not-saved",
        "a checkpoint lacks the recurrent state",
        "Checkpoints",
        "stream",
        _ANY,
        shared(
            _LOOP,
            (
                "                state if carries else None,\n",
                "                state if not carries else None,\n",
            ),
        ),
        check="resume",
    ),
    Fault(
        "state-of-other-layers",
        "a resumed training gives each layer the state of another one",
        "Checkpoints",
        "stream",
        _ANY,
        shared(
            _LOOP,
            (
                _LOADED,
                "        self.step = checkpoint.step\n"
                "        self.state = {n: a[:, ::-1] for n, a in (checkpoint.state or {}).items()}\n",
            ),
        ),
        check="resume",
    ),
    Fault(
        "saved-in-single-precision",
        "a checkpoint holds what a float64 training computed in float32",
        "Checkpoints",
        "bahdanau",
        _ANY,
        shared(
            _FILE,
            (
                '{name: np.asarray(a, order="C") for name, a in checkpoint.snapshot.items()}',
                "{\n"
                '        name: np.asarray(a.astype(np.float32).astype(a.dtype), order="C")\n'
                "        for name, a in checkpoint.snapshot.items()\n"
                "    }",
            ),
        ),
        dtypes=("float64",),
        undetectable_reason="a float32 training is saved as it is",
        check="resume",
    ),
    Fault(
        "rate-starts-again",
        "the learning rate of a resumed training decays as from its first epoch",
        "Checkpoints",
        "stream",
        ("batch/learning_rate",),
        shared(
            _STEPS,
            (
                "learning_rate(spec.training, step // per_epoch)",
                "learning_rate(spec.training, (step - start) // per_epoch)",
            ),
        ),
        check="resume",
    ),
    Fault(
        "text-starts-again",
        "a resumed training reads its text from the beginning",
        "Checkpoints",
        "sentences",
        ("batch/*",),
        shared(
            _STEPS, ("local_batch(text.train, step,", "local_batch(text.train, step - start,")
        ),
        check="resume",
    ),
    Fault(
        "masks-start-again",
        "a resumed training draws the dropout masks of the first steps again",
        "Checkpoints",
        "bahdanau",
        ("forward/*",),
        shared(
            _STEPS, ("step_inputs(spec, step, local", "step_inputs(spec, step - start, local")
        ),
        check="resume",
    ),
)
