"""Faults of what is read: batches, shares of the replicas, masks of dropout, the schedule."""

from parity.twins.faults.edits import joined, mirrored, paddle, shared, tensorflow
from parity.twins.faults.fault import Fault

_EMBEDDED = ("forward/embedded",)
_REPLICA_INPUTS = "replica_inputs = {name: split[replica] for name, split in parts.items()}"

_NO_TEXT = "the oracle reads the batches that the sides recorded, and has no text of its own"

FAULTS = (
    Fault(
        "targets-are-tokens",
        "the targets are the tokens themselves, not the next ones",
        "Targets",
        "stream",
        ("batch/targets",),
        shared(
            "data/text_batches.py",
            ("targets[row, :length] = ids[1:]", "targets[row, :length] = ids[:-1]"),
        ),
        unconfirmable_reason=_NO_TEXT,
    ),
    Fault(
        "other-order",
        "one side shuffles its rows by another seed",
        "Splitting a batch",
        "sentences",
        ("batch/tokens", "*batch/tokens has shape*"),
        shared(
            "data/text_batches.py",
            (
                "self._text, self._seed, self._shuffle = text, seed, shuffle",
                "self._text, self._seed, self._shuffle = text, seed + 1, shuffle",
            ),
        ),
        unconfirmable_reason=_NO_TEXT,
    ),
    Fault(
        "not-reshuffled",
        "every epoch has the order of the first one",
        "Splitting a batch",
        "sentences",
        ("batch/*", "*has shape*"),
        joined(
            *(
                shared(
                    file,
                    (
                        "order, batch_order = self._epoch_plan(step // self.batches_per_epoch)",
                        "order, batch_order = self._epoch_plan(0)",
                    ),
                )
                for file in ("data/text_batches.py", "data/pair_batches.py")
            )
        ),
        unconfirmable_reason=_NO_TEXT,
    ),
    Fault(
        "partial-batch-untrained",
        "a batch with a row that is not full is not trained on",
        "Splitting a batch",
        "stream",
        ("loss/replicas",),
        shared(
            "parity/twins/spec/step_arrays.py",
            (
                'has_tokens = inputs.batch["lengths"][start:stop].any()',
                'has_tokens = inputs.batch["lengths"].min() == inputs.batch["tokens"].shape[1]',
            ),
        ),
    ),
    Fault(
        "remainder-last",
        "the last replica gets the rows left over, not the first ones",
        "Splitting a batch",
        "stream",
        ("batch/sizes",),
        shared(
            "parity/twins/spec/replicas.py",
            (
                "return [base + 1] * more + [base] * (count - more)",
                "return [base] * (count - more) + [base + 1] * more",
            ),
        ),
        unconfirmable_reason="the oracle has no replicas, and takes their sizes from the record",
    ),
    Fault(
        "rows-dropped",
        "rows that do not divide by the replicas are dropped",
        "Splitting a batch",
        "stream",
        ("*batch/sizes is*",),
        {
            "paddle": shared(
                "parity/twins/spec/replicas.py",
                (
                    "return [base + 1] * more + [base] * (count - more)",
                    "return [base] * count",
                ),
            )["paddle"],
            "tensorflow": shared(
                "parity/twins/spec/replicas.py",
                (
                    "return [base + 1] * more + [base] * (count - more)",
                    "return [base] * count",
                ),
            )["tensorflow"]
            + tensorflow(
                "strategies/towers.py",
                (
                    "name: tf.split(tensor, sizes,",
                    "name: tf.split(tensor[: tf.reduce_sum(sizes)], sizes,",
                ),
            )["tensorflow"],
        },
        unconfirmable_reason="the run is refused before the oracle computes anything",
    ),
    Fault(
        "same-rows",
        "every replica is fed the first one's tokens",
        "Splitting a batch",
        "stream",
        _EMBEDDED,
        tensorflow(
            "strategies/towers.py",
            (
                _REPLICA_INPUTS,
                """replica_inputs = {
                name: split[0][: tf.shape(split[replica])[0]]
                if name == "tokens"
                else split[replica]
                for name, split in parts.items()
            }""",
            ),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n        values =",
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n"
                "        for feed in feeds:\n"
                '            feed["tokens"] = feeds[0]["tokens"][: len(feed["tokens"])]\n'
                "        values =",
            ),
        ),
    ),
    Fault(
        "rows-in-other-order",
        "the replicas' rows are put together in another order than they were given out",
        "Fetches",
        "sentences",
        _EMBEDDED,
        tensorflow(
            "strategies/towers.py",
            (
                _REPLICA_INPUTS,
                "replica_inputs = {name: split[replica][::-1] for name, split in parts.items()}",
            ),
        ),
    ),
    Fault(
        "mask-of-first-replica",
        "every replica drops by the first one's mask",
        "Dropout",
        "stream",
        ("forward/lstm_0/hidden",),
        tensorflow(
            "strategies/towers.py",
            (
                _REPLICA_INPUTS,
                """replica_inputs = {
                name: split[0][: tf.shape(split[replica])[0]]
                if name.startswith("mask/")
                else split[replica]
                for name, split in parts.items()
            }""",
            ),
        )
        | paddle(
            "strategies/synchronous_base.py",
            (
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n        values =",
                "        feeds = split_feeds(self.spec, inputs, state, self.replicas, self.micro_batches)\n"
                "        for feed in feeds:\n"
                "            for name in feed:\n"
                '                if name.startswith("mask/"):\n'
                "                    feed[name] = feeds[0][name][: len(feed[name])]\n"
                "        values =",
            ),
        ),
    ),
    Fault(
        "mask-of-other-layer",
        "two layers drop by one mask",
        "Dropout",
        "stream",
        ("forward/logits",),
        shared(
            "parity/twins/spec/step_arrays.py",
            (
                "np.random.PCG64([spec.training.seed, step, place])",
                "np.random.PCG64([spec.training.seed, step, min(place, 1)])",
            ),
        ),
    ),
    Fault(
        "mask-of-first-step",
        "dropout draws its mask once, not at every step",
        "Dropout",
        "stream",
        ("forward/lstm_0/hidden",),
        shared(
            "parity/twins/spec/step_arrays.py",
            (
                "np.random.PCG64([spec.training.seed, step, place])",
                "np.random.PCG64([spec.training.seed, 0, place])",
            ),
        ),
    ),
    Fault(
        "mask-not-scaled",
        "what dropout keeps is not scaled by 1/keep (downgrade_in_infer)",
        "Dropout",
        "stream",
        ("forward/lstm_0/hidden",),
        shared(
            "parity/twins/spec/step_arrays.py",
            (
                "(drawn < model.keep).astype(dtype) / dtype.type(model.keep)",
                "(drawn < model.keep).astype(dtype)",
            ),
        ),
    ),
    Fault(
        "keep-is-drop",
        "the probability of keeping a unit is taken for that of dropping it",
        "Dropout",
        "stream",
        ("forward/lstm_0/hidden",),
        shared(
            "parity/twins/spec/step_arrays.py",
            (
                "(drawn < model.keep).astype(dtype) / dtype.type(model.keep)",
                "(drawn >= model.keep).astype(dtype) / dtype.type(1 - model.keep)",
            ),
        ),
    ),
    Fault(
        "no-dropout-at-the-top",
        "the top layer's output is not dropped from",
        "Dropout",
        "stream",
        ("forward/logits",),
        mirrored(
            "networks.py",
            (
                "        hidden = dropout(hidden, masks.get(name))\n        states",
                "        hidden = dropout(hidden, masks.get(name)) if k == 0 else hidden\n        states",
            ),
        ),
    ),
    Fault(
        "vocabulary-reversed",
        "the ids of the vocabulary run from the rarest word to the most frequent one",
        "Vocabulary",
        "stream",
        ("batch/tokens",),
        shared(
            "data/vocabulary.py",
            (
                "    return Vocabulary((*special, *words[:limit]), source=source, special=special)\n",
                "    return Vocabulary((*special, *words[:limit][::-1]), source=source, special=special)\n",
            ),
        ),
        unconfirmable_reason=_NO_TEXT,
    ),
    Fault(
        "schedule-early",
        "the learning rate decays one epoch too early",
        "Learning rate",
        "stream",
        ("batch/learning_rate",),
        shared(
            "parity/twins/spec/training.py",
            (
                "max(epoch + 1 - training.decay_after, 0)",
                "max(epoch + 2 - training.decay_after, 0)",
            ),
        ),
    ),
    Fault(
        "schedule-late",
        "the learning rate decays one epoch too late",
        "Learning rate",
        "stream",
        ("batch/learning_rate",),
        shared(
            "parity/twins/spec/training.py",
            (
                "max(epoch + 1 - training.decay_after, 0)",
                "max(epoch - training.decay_after, 0)",
            ),
        ),
    ),
    Fault(
        "schedule-by-step",
        "the learning rate decays with every step, not with every epoch",
        "Learning rate",
        "stream",
        ("batch/learning_rate",),
        shared(
            "parity/twins/training/train_steps.py",
            (
                "learning_rate(spec.training, step // per_epoch)",
                "learning_rate(spec.training, step)",
            ),
        ),
    ),
)
