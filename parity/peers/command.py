"""The command line of all peers: the flags of `train.py`, and a loop that only trains."""

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole
from parity.cli.command_line import (
    command_options,
    load_plugins_or_exit,
    main,
    spec_from,
    spec_options,
    take_options,
)
from parity.cli.options import TrainOptions
from parity.spec.spec import Spec
from parity.training.loop import smallest_batch
from parity.training.loss_table import Losses
from parity.training.meter import Meter
from parity.training.replicas_and_threads import choose_layout
from parity.training.train_steps import train_steps
from parity.training.training_text import read_text


def peer_command(peer: str, make_trainer: Callable[[Spec, int, int], Any]) -> None:
    """Parse the flags, train for `--steps`, write losses.csv and summary.json, and exit.

    Args:
      peer: the peer's name.
      make_trainer: a function (spec, replicas, threads) that returns an object with the
        attributes framework, replicas and versions and the methods step and peak_memory.
    """

    load_plugins_or_exit()

    @click.command(help=f"Train a network with {peer}, to measure its speed.")
    @command_options(TrainOptions)
    @spec_options()
    def command(**values: Any) -> int:
        options = take_options(TrainOptions, values)
        _train(peer, make_trainer, spec_from(options.network, options.preset, values), options)
        return 0

    sys.exit(main(command))


def _train(
    peer: str, make_trainer: Callable[[Spec, int, int], Any], spec: Spec, options: TrainOptions
) -> None:
    if options.device != "cpu":
        raise UsageError(f"--device is {options.device!r}; allowed for {peer}: cpu")
    for name in ("trace", "resume", "isolate"):
        if getattr(options, name):
            raise UsageError(f"--{name} is given; not allowed for {peer}, which is only timed")
    spec, text = read_text(spec, options)
    layout = choose_layout(options, smallest_batch(text))
    last = options.steps or spec.training.epochs * text.train.batches_per_epoch
    trainer = make_trainer(spec, layout.replicas, layout.threads)
    make_folder(options.out)
    meter, losses = Meter(), Losses(options.out / "losses.csv")
    for step in train_steps(trainer, text, last, meter):
        loss = step.inputs.per_token(step.result.loss)
        losses.add(step.number, loss, step.inputs.num_tokens)
    losses.save()
    summary = {
        "framework": peer,
        "replicas": layout.replicas,
        "dtype": spec.training.dtype,
        "steps": last,
        "peak_memory": trainer.peak_memory(),
        "padding": text.padding,
        "versions": trainer.versions,
        **meter.report(),
    }
    write_whole(options.out / "summary.json", json.dumps(summary, indent=2).encode())
