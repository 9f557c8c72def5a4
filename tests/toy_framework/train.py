"""Trains the language model with NumPy, in a process of its own."""

import sys
from pathlib import Path

# Replaces this script's folder, as in the trainers of this project.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from oracle_side import OracleStrategy
from parity.twins.training.resolved import resolved

from parity.twins.cli.command_line import train_command
from parity.twins.training.loop import run_training
from parity.twins.training.text_source import read_text
from toy_framework.engine import versions
from toy_framework.strategies import STRATEGIES


def train(spec, options):
    """Train the network of a spec."""
    STRATEGIES.check_training(options.strategy, spec.training)
    asked = spec
    spec, text = read_text(spec, options)
    run_training(OracleStrategy, text, spec, options, versions, asked=asked)


if __name__ == "__main__":
    train_command("numpy", train, resolved)
