"""Faults of several processes: what each reads and computes, and what passes between them."""

from typing import Any

from parity.twins.faults.edits import Edits, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_TOPIC = "Several processes"
_TWO, _OF_REPLICAS = "two processes", "processes of replicas"
_SERVED = "served workers"
_GRADIENT = ("gradient/softmax/*",)

_PADDLE_OWN = "        own = self._group.own(len(feeds))\n        computed"
_PADDLE_PACKED = "        dtype = gradients[0].dtype\n"
_PADDLE_SUMMED = "                paddle.distributed.all_reduce(paddle.Tensor(first))\n"
_PADDLE_REPORTED = "        *losses, stop = self._sum(report)\n"
_PADDLE_COPIED = (
    "        for other, place in zip(others, self._places[1:], strict=True):\n"
    "            other._copy_from(first, place)\n"
)
_PADDLE_CLASS = (
    "    def _executor(self, program, loss_name, share_variables_from=None):\n        group"
)
_TF_CLASS = "    def _start_engine(self):\n"
_TF_OWN = "        feeds = split_feeds(self.spec, inputs, state, self.replicas)[self._own]\n"
_TF_BEFORE = "        losses = tf.where(is_own, loss, tf.zeros_like(loss))\n"
_TF_SUMMED = "        return gradients, summed\n"
_TOKENS_OF_FIRST = (
    '        tokens = {{"tokens": feeds[0]["tokens"]}} if {group}.rank == 0 else None\n'
    '        tokens = {group}.broadcast(tokens)["tokens"]\n'
)
# a process by itself has no such variable
_TF_RANK = 'json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)'
_MASKS = "        stream = np.random.PCG64([spec.training.seed, step, place])\n"

_PULLED = "self._servers.read(self._own)"
_PUSHED = "        self._executor.run(program, scope=scope)\n        self._pushed += 1\n"
_APPLIED = "            if all(_are_equal(_copied(scope, name), expected[name]) for name in self._names):\n"
_PUSHED_RATE = '"ScaleTensor": rate},'

_IN_SINGLE: Any = {
    "dtypes": ("float32",),
    "undetectable_reason": "Paddle's servers keep float32 alone",
}


def _in_paddle(*changes: tuple[str, str]) -> Edits:
    return paddle("strategies/data_parallel.py", *changes)


def _in_tensorflow(*changes: tuple[str, str]) -> Edits:
    return tensorflow("strategies/multi_worker.py", *changes)


def _in_connection(*changes: tuple[str, str]) -> Edits:
    return paddle("strategies/server_connection.py", *changes)


def _with_own_seeds(rank: str) -> tuple[str, str]:
    """Return the edit that draws masks from the seed plus the rank, a Python expression."""
    return (
        _MASKS,
        f"        import json, os\n\n        own = spec.training.seed + {rank}\n"
        + _MASKS.replace("spec.training.seed", "own"),
    )


FAULTS = (
    Fault(
        "process-rows-of-first",
        "every process reads the rows of the first one",
        _TOPIC,
        _TWO,
        ("forward/embedded",),
        _in_paddle(
            (
                _PADDLE_OWN,
                _TOKENS_OF_FIRST.format(group="self._group")
                + "        for feed in feeds[self._group.own(len(feeds))]:\n"
                '            feed["tokens"] = tokens[: len(feed["tokens"])]\n' + _PADDLE_OWN,
            )
        )
        | _in_tensorflow(
            (
                _TF_OWN,
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas)\n"
                + _TOKENS_OF_FIRST.format(group="self.build.group")
                + "        for feed in feeds[self._own]:\n"
                '            feed["tokens"] = tokens[: len(feed["tokens"])]\n'
                "        feeds = feeds[self._own]\n",
            )
        ),
    ),
    Fault(
        "process-loads-nothing",
        "only the first process loads the weights; the others keep weights of their own",
        _TOPIC,
        _TWO,
        ("forward/embedded",),
        _in_paddle(
            (
                _PADDLE_CLASS,
                "    def load(self, snapshot):\n"
                "        from parity.twins.spec.initial import initial_snapshot\n\n"
                "        if self.build.group.rank > 0:\n"
                "            seed = self.spec.training.seed + self.build.group.rank\n"
                "            snapshot = initial_snapshot(self.spec.replace(seed=seed))\n"
                "        super().load(snapshot)\n\n" + _PADDLE_CLASS,
            )
        )
        | _in_tensorflow(
            (
                _TF_CLASS,
                "    def __init__(self, spec, build, entry):\n"
                "        from parity.twins.spec.initial import initial_snapshot\n\n"
                "        super().__init__(spec, build, entry)\n"
                "        if build.group.rank > 0:\n"
                "            seed = spec.training.seed + build.group.rank\n"
                "            self.load(initial_snapshot(spec.replace(seed=seed)))\n\n"
                + _TF_CLASS,
            )
        ),
        unconfirmable_reason="the trace has the first process's weights alone, which are right",
    ),
    Fault(
        "process-seeds",
        "every process draws its dropout masks from a seed of its own",
        _TOPIC,
        _TWO,
        ("forward/lstm_0/hidden",),
        {
            "paddle": shared(
                "parity/twins/spec/step_arrays.py",
                _with_own_seeds('int(os.environ.get("PADDLE_TRAINER_ID", 0))'),
            )["paddle"],
            "tensorflow": shared(
                "parity/twins/spec/step_arrays.py",
                _with_own_seeds(_TF_RANK),
            )["tensorflow"],
        },
        unconfirmable_reason="the oracle cannot know which seed another process has",
    ),
    Fault(
        "process-loss-per-own-tokens",
        "every process divides its loss by its own tokens, and not by those of all",
        _TOPIC,
        _TWO,
        ("loss/*",),
        _in_paddle(
            (
                _PADDLE_OWN,
                "        mine = feeds[self._group.own(len(feeds))]\n"
                '        tokens = sum(feed["lengths"].sum() for feed in mine)\n'
                "        for feed in mine:\n"
                '            feed["scale"] = np.full_like(feed["scale"], 1 / max(tokens, 1))\n'
                + _PADDLE_OWN,
            )
        )
        | _in_tensorflow(
            (
                _TF_OWN,
                _TF_OWN + '        tokens = sum(feed["lengths"].sum() for feed in feeds)\n'
                "        for feed in feeds:\n"
                '            feed["scale"] = np.full_like(feed["scale"], 1 / max(tokens, 1))\n',
            )
        ),
    ),
    Fault(
        "process-losses-not-summed",
        "the reported losses are those of the first process alone",
        _TOPIC,
        _TWO,
        ("loss/*",),
        _in_paddle(
            (
                _PADDLE_REPORTED,
                "        mine = report.copy()\n"
                + _PADDLE_REPORTED
                + "        losses = mine[:-1]\n",
            )
        )
        | _in_tensorflow(
            (
                _TF_SUMMED,
                "        return gradients, tf.concat([losses, summed[-1:]], axis=0)\n",
            )
        ),
    ),
    Fault(
        "process-mean",
        "the gradients are averaged over the processes, although losses are shares",
        _TOPIC,
        _TWO,
        _GRADIENT,
        _in_paddle(
            (
                _PADDLE_SUMMED,
                "                buffer = paddle.Tensor(first)\n"
                "                paddle.distributed.all_reduce(buffer)\n"
                "                report = np.array(summed)\n"
                "                buffer.scale_(1 / self._group.size)\n"
                "                summed.set(report, self._places[0])\n",
            )
        )
        | _in_tensorflow(
            (
                _TF_SUMMED,
                "        return [each / self.build.group.size for each in gradients], summed\n",
            )
        ),
    ),
    Fault(
        "process-sum-without-one",
        "the sum over the processes leaves one gradient out",
        _TOPIC,
        _TWO,
        ("gradient/softmax/bias",),
        _in_paddle(
            (
                _PADDLE_SUMMED,
                '                left = scopes[0].find_var("softmax/bias@GRAD/sum").get_tensor()\n'
                "                own = np.array(left)\n"
                + _PADDLE_SUMMED
                + "                left.set(own, self._places[0])\n",
            )
        )
        | _in_tensorflow(
            (_TF_BEFORE, "        own = list(gradients)\n" + _TF_BEFORE),
            (
                _TF_SUMMED,
                '        left = list(self._weights).index("softmax/bias")\n'
                "        gradients[left] = own[left]\n" + _TF_SUMMED,
            ),
        ),
    ),
    Fault(
        "process-clips-before-sum",
        "every process clips its own gradient, before the sum",
        _TOPIC,
        _TWO,
        _GRADIENT,
        _in_paddle(
            (
                _PADDLE_PACKED,
                "        from paddle_impl.optimizers import clip_by_global_norm\n\n"
                "        limit = self.spec.training.clip_norm\n"
                "        gradients, _ = clip_by_global_norm(gradients, limit)\n"
                + _PADDLE_PACKED,
            )
        )
        | _in_tensorflow(
            (
                _TF_BEFORE,
                "        from tf_impl.optimizers import clip_by_global_norm\n\n"
                "        limit = self.spec.training.clip_norm\n"
                "        gradients, _ = clip_by_global_norm(gradients, limit)\n" + _TF_BEFORE,
            )
        ),
    ),
    Fault(
        "process-sum-for-first-replica",
        "only the first replica of a process gets the sum over all processes",
        _TOPIC,
        _OF_REPLICAS,
        ("replicas/weight/*",),
        _in_paddle((_PADDLE_COPIED, "        del others\n")),
        unconfirmable_reason="the trace has the first replica's weights alone, and these are right",
    ),
    Fault(
        "process-evaluates-alone",
        "the loss of an evaluation is that of the first process's rows",
        _TOPIC,
        _TWO,
        ("evaluate/*/losses",),
        _in_paddle(
            (
                'np.concatenate([each["losses"] for each in gathered])',
                'gathered[0]["losses"].repeat(self.build.group.size)',
            )
        )
        | tensorflow(
            "strategies/several_processes.py",
            (
                'np.concatenate([each["losses"] for each in gathered])',
                'gathered[0]["losses"].repeat(self.build.group.size)',
            ),
        ),
        check="evaluation",
    ),
    Fault(
        "served-stale-pull",
        "a worker pulls but once, and goes on with the weights that its own pushes left",
        _TOPIC,
        _SERVED,
        ("read/*",),
        paddle(
            "strategies/parameter_server.py",
            (
                _PULLED,
                "self.__dict__.setdefault('pulls', []).append(1)\n"
                f"        if len(self.pulls) == 1:\n            {_PULLED}",
            ),
        ),
        **_IN_SINGLE,
        unconfirmable_reason="what a worker pulled is compared to the bit",
    ),
    Fault(
        "served-push-twice",
        "the servers apply a worker's third push twice",
        _TOPIC,
        _SERVED,
        ("weight/*",),
        _in_connection(
            (
                _PUSHED,
                f"{_PUSHED}        if self._pushed == 3:\n"
                + _PUSHED.replace("        self", "            self"),
            ),
            (_APPLIED, "            if (own == self._pushed).all():\n"),
        ),
        **_IN_SINGLE,
    ),
    Fault(
        "served-push-lost",
        "a worker's third push never reaches the servers",
        _TOPIC,
        _SERVED,
        ("weight/*",),
        _in_connection(
            (
                _PUSHED,
                "        self.pushes = getattr(self, 'pushes', 0) + 1\n"
                "        if self.pushes == 3:\n            return\n" + _PUSHED,
            )
        ),
        **_IN_SINGLE,
    ),
    Fault(
        "served-without-rate",
        "a worker leaves the learning rate to the servers, where it is 1",
        _TOPIC,
        _SERVED,
        ("weight/*",),
        _in_connection((_PUSHED_RATE, "},")),
        **_IN_SINGLE,
    ),
)
