"""Trains the language model with NumPy, in a process of its own."""

import sys
from pathlib import Path

# Replaces this script's folder, as in the trainers of this project.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from parity.twins.training.start import train_with
from toy_framework.engine import load_engine, versions
from toy_framework.strategies import STRATEGIES

if __name__ == "__main__":
    train_with(STRATEGIES, load_engine, versions)
