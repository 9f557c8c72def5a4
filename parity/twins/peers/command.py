"""The command line of the peers: the flags of `train.py`, to train a network or to time it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole
from parity.cli.command_line import load_plugins_or_exit, run_and_exit
from parity.twins.cli.command_line import command_options, spec_from, spec_options, take_options
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategyRegistry
from parity.twins.training.layout import choose_layout, smallest_batch
from parity.twins.training.loss_table import Losses
from parity.twins.training.meter import Meter
from parity.twins.training.start import Side, run_training
from parity.twins.training.strategy import Build
from parity.twins.training.text_source import read_text
from parity.twins.training.train_steps import train_steps

_NEVER = ("trace", "profile")  # flags that no peer takes


def training_command(
    strategies: StrategyRegistry,
    versions: Callable[[], dict[str, str]],
    record: Callable[[Spec, TrainOptions, dict[str, str]], None],
) -> None:
    """Run the command line of a peer that trains, validates and tests as `train.py` does.

    Args:
      strategies: the peer's strategies. Each also has the method `peak_memory`, which returns
        the peak memory of each process in bytes.
      versions: returns the versions of the framework and of NumPy.
      record: trains as a witness, which writes the trace of `--trace`.
    """
    peer = strategies.framework

    def train(spec: Spec, options: TrainOptions) -> None:
        _check(peer, options, ("profile",))
        if options.trace is not None:
            record(spec, options, versions())
            return
        # refuse an unknown strategy before any text is read
        settings = strategies.settings(options.strategy, options.settings)
        options = replace(options, settings=settings)
        spec, text = read_text(spec, options)
        built = []

        def remember(spec: Spec, build: Build) -> Any:
            built.append(strategies.make(options.strategy, spec, build))
            return built[0]

        summary = run_training(Side(remember, versions), text, spec, options)
        if summary is not None:  # the loop knows only the memory of its own process
            summary.peak_memory = built[0].peak_memory()
            summary.write(options.out / "summary.json", text)

    _run(f"Train a network with {peer}, on the same batches as both sides.", train)


def timing_command(
    strategies: StrategyRegistry, make_trainer: Callable[[Spec, int, int], Any]
) -> None:
    """Run the command line of a peer that only trains for `--steps`, to measure its speed.

    Args:
      strategies: the peer's strategies, of which there is one.
      make_trainer: a function (spec, replicas, threads) that returns an object with the
        attributes framework, replicas and versions and the methods step and peak_memory.
    """
    peer = strategies.framework

    def train(spec: Spec, options: TrainOptions) -> None:
        _check(peer, options, (*_NEVER, "resume"))
        strategies.settings(options.strategy, options.settings)
        _time(peer, make_trainer, spec, options)

    _run(f"Train a network with {peer}, to measure its speed.", train)


def _run(help_text: str, train: Callable[[Spec, TrainOptions], None]) -> None:
    load_plugins_or_exit()

    @click.command(help=help_text)
    @command_options(TrainOptions)
    @spec_options()
    def command(**values: Any) -> int:
        options = take_options(TrainOptions, values)
        train(spec_from(options.network, options.preset, values), options)
        return 0

    run_and_exit(command)


def _check(peer: str, options: TrainOptions, not_allowed: tuple[str, ...]) -> None:
    """Refuse the options that a peer does not have.

    Raises:
      UsageError: for such an option.
    """
    if options.device != "cpu":
        raise UsageError(f"--device is {options.device!r}; allowed for {peer}: cpu")
    for name in not_allowed:
        if getattr(options, name):
            raise UsageError(f"--{name} is given; not allowed for {peer}")


def _time(
    peer: str, make_trainer: Callable[[Spec, int, int], Any], spec: Spec, options: TrainOptions
) -> None:
    """Train for `--steps`, and write losses.csv and summary.json."""
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
