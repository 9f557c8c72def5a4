"""Train a network with Paddle's ParallelExecutor: `python paddle_impl/train.py --help`."""

import sys
from pathlib import Path

# In place of this script's own folder: modules are imported by their full names.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data.corpus import load_corpus
from data.language_model import make_batches
from data.prefetch import Prefetch
from parity.cli import train_command
from parity.progress import say
from parity.training import TextBatches, run_training


def train(spec, options):
    """Train as the spec and the options of the command line say.

    Args:
      spec: Spec, its vocabulary size the most that is kept.
      options: TrainOptions.
    """
    corpus = load_corpus(options.data, options.cache, spec.model.vocabulary_size)
    spec = spec.replace(vocabulary_size=len(corpus.vocabulary))
    training = spec.training
    batches = {
        split: make_batches(
            getattr(corpus, split),
            training.batching,
            training.batch_size,
            training.time,
            training.seed,
            shuffle=split == "train",
        )
        for split in ("train", "valid", "test")
    }
    for note in (*corpus.notes, *batches["train"].notes):
        say(note)

    from paddle_impl.engine import load_engine, versions

    def make_trainer(spec):
        load_engine(options.threads, options.device)
        from paddle_impl.trainer import Trainer

        return Trainer(
            spec,
            options.replicas,
            options.device,
            options.threads,
            options.log_device_placement,
        )

    text = TextBatches(
        **batches,
        prefetch=Prefetch,
        content_hash=corpus.content_hash,
        best_perplexity=corpus.best_perplexity,
    )
    run_training(make_trainer, text, spec, options, versions)


if __name__ == "__main__":
    train_command("paddle", train)
