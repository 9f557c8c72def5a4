"""Train a network with TensorFlow towers: `python tf_impl/train.py --help`."""

import sys
from pathlib import Path

# In place of this script's own folder: modules are imported by their full names.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data.load import load_text
from parity.base.progress import say
from parity.cli.command_line import train_command
from parity.training.loop import run_training


def train(spec, options):
    """Train as the spec and the options of the command line say.

    Args:
      spec: Spec, its vocabulary size the most that is kept.
      options: TrainOptions.
    """
    text = load_text(
        spec.network,
        options.data,
        options.cache,
        spec.values(),
        user_dictionary=options.user_dictionary,
        on_empty=options.on_empty,
    )
    spec = spec.replace(**text.sizes)
    for note in text.notes:
        say(note)

    from tf_impl.engine import load_engine, versions

    def make_trainer(spec, layout):
        load_engine(layout.threads, options.device)
        from tf_impl.trainer import Trainer

        return Trainer(
            spec,
            layout.replicas,
            options.device,
            layout.threads,
            options.log_device_placement,
            isolate=options.isolate,
            evaluates=options.trace is None,
            kernels=options.kernels,
        )

    run_training(make_trainer, text, spec, options, versions)


if __name__ == "__main__":
    train_command("tensorflow", train)
