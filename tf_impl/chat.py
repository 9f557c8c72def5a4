"""Ask a trained network questions, with TensorFlow: `python tf_impl/chat.py --help`."""

import sys
from pathlib import Path

# Replaces this script's folder: modules are imported by their full names, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from parity.base.process import stop_in_one_line

stop_in_one_line()

from parity.twins.chat.conversation import chat_with

if __name__ == "__main__":
    chat_with("tensorflow")
