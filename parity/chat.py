"""A person asks, a trained network answers: what both sides' `chat.py` have in common."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parity.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint, read_vocabularies
from parity.decoding import DecodingModel, Hypotheses, beam_search, greedy, sample
from parity.errors import UsageError
from parity.files import make_folder, write_whole
from parity.networks import NETWORKS
from parity.options import ChatOptions
from parity.pictures import plot_attention
from parity.progress import say

_AT_ONCE = 64  # questions of a file answered together
_PROMPT = "> "


class Words(Protocol):
    """What the network reads and writes with; data/load.py makes it."""

    source_vocabulary: Any
    target_vocabulary: Any

    def read(self, question: str) -> np.ndarray:
        """Return the ids of a question; raises an error with exit_status 2 if it has none."""

    def write(self, ids: Sequence[int]) -> str:
        """Return what the ids of an answer say."""


@dataclass(frozen=True)
class Trained:
    """A trained network as it lies on disk.

    Attributes:
      checkpoint: the weights and the spec.
      vocabularies: file name -> content.
      folder: where these lie.
    """

    checkpoint: Checkpoint
    vocabularies: dict[str, bytes]
    folder: Path


def open_trained(options: ChatOptions) -> Trained:
    """Read a checkpoint and the vocabularies beside it.

    Raises:
      UsageError: if there is none, it is of another network, or the vocabularies do not fit.
    """
    path = options.checkpoint
    if path is None:
        raise UsageError("--checkpoint is missing; allowed: a checkpoint, or a run's folder")
    folder = path.parent
    if path.is_dir():
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        notes: list[str] = []
        newest = newest_checkpoint(folder, notes)
        for note in notes:
            say(note)
        if newest is None:
            raise UsageError(f"{path}: holds no checkpoint")
        checkpoint = newest
    else:
        checkpoint = load_checkpoint(path)
    if not NETWORKS[checkpoint.spec.network].decodes:
        able = ", ".join(name for name, network in NETWORKS.items() if network.decodes)
        raise UsageError(
            f"{path}: a checkpoint of network {checkpoint.spec.network!r}, which answers "
            f"nothing; allowed: {able}"
        )
    folder = options.vocabulary or folder
    return Trained(checkpoint, read_vocabularies(checkpoint, folder), folder)


def converse(
    make_model: Callable[[], DecodingModel],
    words: Words,
    trained: Trained,
    options: ChatOptions,
    read_lines: Callable[[Path], Iterable[str]],
) -> None:
    """Answer a file of questions, or a person until the input ends.

    Args:
      make_model: builds the network with its weights; called once the input is known to be
        good.
      read_lines: yields the lines of a text file.

    Raises:
      UsageError: for an option that is not allowed, or a question of the file that cannot be
        answered, naming its line; nothing is answered then.
    """
    if options.output is not None and options.input is None:
        raise UsageError(f"--output is {str(options.output)!r}; allowed: only with --input")
    if options.attention_plot is not None and options.input is None:
        raise UsageError(
            f"--attention-plot is {str(options.attention_plot)!r}; allowed: only with --input"
        )
    if options.input is None:
        _talk(make_model(), words, trained, options)
        return
    questions = _read_all(read_lines(options.input), words, options.input)
    model = make_model()
    lines, pictures = [], []
    for start in range(0, len(questions), _AT_ONCE):
        part = questions[start : start + _AT_ONCE]
        for ids, found in zip(part, _answer(model, part, trained, options, start), strict=True):
            lines += _lines(found, words, options)
            pictures.append(_picture(ids, found, words))
        if options.output is None:
            print("\n".join(lines), flush=True)
            lines = []
    if options.output is not None:
        make_folder(options.output.parent)
        write_whole(options.output, "".join(f"{line}\n" for line in lines).encode())
    if options.attention_plot is not None:
        make_folder(options.attention_plot.parent)
        plot_attention(pictures, options.attention_plot)


def _talk(model: DecodingModel, words: Words, trained: Trained, options: ChatOptions) -> None:
    person = sys.stdin.isatty()
    if person:
        spec = trained.checkpoint.spec
        say(
            f"{spec.model.cell} with {spec.model.attention} attention, trained for "
            f"{trained.checkpoint.step} steps by {trained.checkpoint.framework}; "
            "an empty line or Ctrl-D ends"
        )
    asked = 0
    while True:
        try:
            line = input(_PROMPT if person else "")
        except (EOFError, KeyboardInterrupt):
            if person:
                print()
            return
        if person and not line.strip():
            return
        try:
            ids = words.read(line)
        except Exception as error:
            if getattr(error, "exit_status", None) != 2 or not person:
                raise
            say(str(error))
            continue
        (found,) = _answer(model, [ids], trained, options, asked)
        asked += 1
        print("\n".join(_lines(found, words, options)), flush=True)


def _read_all(lines: Iterable[str], words: Words, path: Path) -> list[np.ndarray]:
    questions = []
    for number, line in enumerate(lines, start=1):
        try:
            questions.append(words.read(line))
        except Exception as error:
            if getattr(error, "exit_status", None) != 2:
                raise
            raise UsageError(f"{path}:{number}: {error}") from None
    return questions


def _answer(
    model: DecodingModel,
    questions: Sequence[np.ndarray],
    trained: Trained,
    options: ChatOptions,
    first: int,
) -> list[Hypotheses]:
    """Answer some questions; `first` is the number of the first one, for sampling."""
    lengths = np.array([len(ids) for ids in questions])
    source = np.zeros((len(questions), lengths.max()), np.int64)
    for row, ids in enumerate(questions):
        source[row, : len(ids)] = ids
    most = options.longest or int(trained.checkpoint.spec.text.target_limit) + 1
    if options.method == "greedy":
        return greedy(model, source, lengths, most)
    if options.method == "sample":
        return sample(model, source, lengths, most, options.seed, options.temperature, first)
    return beam_search(model, source, lengths, options.beam, options.length_penalty, most)


def _lines(found: Hypotheses, words: Words, options: ChatOptions) -> list[str]:
    if not options.top:
        return [words.write(found.best.tokens)]
    return [f"{each.score:9.4f}  {words.write(each.tokens)}" for each in found.ranked] + [""]


def _picture(
    ids: np.ndarray, found: Hypotheses, words: Words
) -> tuple[Sequence[str], Sequence[str], np.ndarray]:
    best = found.best
    target = words.target_vocabulary.decode(best.tokens) + ["<eos>"] * best.finished
    weights = best.weights if best.weights is not None else np.zeros((len(target), len(ids)))
    return words.source_vocabulary.decode(ids), target, weights[:, : len(ids)]
