"""Train a network with Paddle: `python paddle_impl/train.py --help`."""

import sys
from pathlib import Path

# Replaces this script's folder: modules are imported by their full names, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from parity.base.process import stop_in_one_line
from parity.twins.launch.huge_pages import use_huge_pages

stop_in_one_line()

if __name__ == "__main__":
    # differs: the other side keeps freed memory instead; several replicas' heap would fragment
    use_huge_pages()

from paddle_impl.engine import load_engine, versions
from paddle_impl.strategies import STRATEGIES
from parity.twins.training.start import train_with

if __name__ == "__main__":
    train_with(STRATEGIES, load_engine, versions)
