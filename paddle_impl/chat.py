"""Ask a trained network questions, with Paddle: `python paddle_impl/chat.py --help`."""

import sys
from pathlib import Path

# Replaces this script's folder: modules are imported by their full names, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data.load import load_words
from data.text_file import read_lines
from parity.twins.chat.conversation import converse, open_trained
from parity.twins.cli.command_line import chat_command
from parity.twins.training.strategy import Build


def chat(options):
    """Answer questions with a trained network.

    Args:
      options: ChatOptions.
    """
    trained = open_trained(options, load_words)

    from paddle_impl.engine import load_engine

    def make_model():
        load_engine(options.threads, options.device)
        from paddle_impl.decode import Decoder

        build = Build(device=options.device, threads=options.threads)
        decoder = Decoder(trained.checkpoint.spec, build)
        decoder.load(trained.checkpoint.snapshot)
        return decoder

    converse(make_model, trained, options, read_lines)


if __name__ == "__main__":
    chat_command("paddle", chat)
