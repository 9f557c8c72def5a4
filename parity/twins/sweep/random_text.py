"""Small random texts: sentences of chosen lengths, and as many as make a few batches."""

import random
from dataclasses import dataclass
from pathlib import Path

from parity.base.files import make_folder, write_whole
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec

# The fewest and the most words of a sentence.
LENGTHS = {"one word": (1, 1), "short": (1, 3), "mixed": (1, 12), "long": (7, 16)}

_MOST_WORDS = 99  # of a sentence of a language model; longer rows are cut


@dataclass(frozen=True)
class DrawnText:
    """A small generated text.

    Attributes:
      lengths: key of `LENGTHS`, how long its sentences are.
      words: the most different words; those of the first half are the more frequent ones.
      batches: about how many batches an epoch has.
      more: rows or tokens beyond whole batches.
      seed: the seed of its words.
    """

    lengths: str
    words: int
    batches: int
    more: int
    seed: int

    def write(self, spec: Spec, folder: Path) -> Path:
        """Write the text for a network; return what --data takes."""
        make_folder(folder)
        for name, lines in self.lines(spec).items():
            write_whole(folder / name, "".join(line + "\n" for line in lines).encode())
        return folder

    def lines(self, spec: Spec) -> dict[str, list[str]]:
        """Return the lines of each file."""
        source = random.Random(self.seed)
        form = NETWORKS[spec.network].text_format
        limits = [getattr(spec.text, name) for name in form.limits] or [_MOST_WORDS]
        files = {}
        for split, batches in (("train", self.batches), ("valid", 1), ("test", 1)):
            lines: list[str] = []
            more = self.more * (split == "train")
            while self._too_few(spec, lines, batches, more):
                sentences = [self._sentence(source, len(lines), most) for most in limits]
                lines.append("\t".join(sentences))
            files[f"{split}.{form.suffix}"] = lines
        return files

    def smallest_batch(self, spec: Spec) -> int:
        """Return the fewest rows that a batch of any split has."""
        most = int(spec.training.batch_size)
        if NETWORKS[spec.network].contiguous(spec.text):
            return most
        fewest = most
        for lines in self.lines(spec).values():
            rows = len(lines)
            if not NETWORKS[spec.network].text_format.pairs:
                # a row ends with <eos>, and a longer one is cut
                rows = sum(-(-(len(each.split()) + 1) // spec.text.time) for each in lines)
            fewest = min(fewest, rows // -(-rows // most))
        return fewest

    def _too_few(self, spec: Spec, lines: list[str], batches: int, more: int) -> bool:
        """Return whether the lines are fewer than a split needs."""
        if len(lines) < 2:  # with one word alone there is nothing to predict
            return True
        rows = spec.training.batch_size * batches
        if NETWORKS[spec.network].contiguous(spec.text):
            tokens = sum(len(each.split()) + 1 for each in lines)
            return bool(tokens < 1 + spec.text.time * rows + more)
        return bool(len(lines) < rows + more)

    def _sentence(self, source: random.Random, number: int, most: int) -> str:
        """Return one sentence of at most so many words."""
        lowest, highest = (min(each, most) for each in LENGTHS[self.lengths])
        words = [
            source.randrange(source.randint(1, self.words))
            for _ in range(source.randint(lowest, highest))
        ]
        words[0] = number % self.words  # at least two different words, for a vocabulary
        return " ".join(f"w{word}" for word in words)
