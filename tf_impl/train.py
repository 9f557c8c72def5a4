"""Train a network with TensorFlow: `python tf_impl/train.py --help`."""

import sys
from pathlib import Path

# Replaces this script's folder: modules are imported by their full names, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from parity.base.process import stop_in_one_line

stop_in_one_line()

from parity.twins.training.start import train_with
from tf_impl.engine import load_engine, versions
from tf_impl.strategies import STRATEGIES

if __name__ == "__main__":
    train_with(STRATEGIES, load_engine, versions)
