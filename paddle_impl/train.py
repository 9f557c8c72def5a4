"""Train a network with Paddle: `python paddle_impl/train.py --help`."""

import sys
from dataclasses import replace
from pathlib import Path

# Replaces this script's folder: modules are imported by their full names, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from parity.base.process import use_huge_pages

if __name__ == "__main__":
    # differs: keeping freed memory fragments Paddle's heap, up to 3 times its size
    use_huge_pages()

from paddle_impl.engine import load_engine, versions
from paddle_impl.strategies import STRATEGIES
from parity.twins.cli.command_line import train_command
from parity.twins.processes.start import process_group
from parity.twins.training.loop import run_training
from parity.twins.training.measured_layout import Calibration
from parity.twins.training.resolved import resolved
from parity.twins.training.text_source import read_text


def train(spec, options):
    """Train the network of a spec.

    Args:
      spec: Spec; its vocabulary sizes are the largest allowed.
      options: TrainOptions.
    """
    # refuse what a strategy cannot do before any text is read or process started
    settings = STRATEGIES.settings(options.strategy, options.settings)
    options = replace(options, settings=settings)
    STRATEGIES.check_training(options.strategy, spec.training)
    entry = STRATEGIES.entry(options.strategy)

    def make_strategy(spec, build):
        load_engine(build.threads, build.device)
        # an engine that waits for a rank that is slower to load it may stop all threads
        build.group.barrier()
        return STRATEGIES.make(options.strategy, spec, replace(build, settings=settings))

    joined = process_group(
        "paddle",
        entry,
        settings,
        options.replicas,
        options.max_restarts,
        options.hosts,
    )
    with joined as group:
        asked = spec
        spec, text = read_text(spec, options)
        calibration = Calibration("paddle", entry)
        run_training(make_strategy, text, spec, options, versions, group, asked, calibration)


if __name__ == "__main__":
    train_command("paddle", train, resolved)
