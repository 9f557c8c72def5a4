"""A conversation with a trained network: what `chat.py` of both sides have in common."""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.load import load_words
from data.pair_batches import pad_sources
from data.pair_corpus import PairCodec
from data.text_file import read_lines
from parity.base.errors import UsageError
from parity.base.files import check_output, write_whole
from parity.base.progress import say
from parity.base.text import escaped
from parity.twins.chat.attention_plot import Attention, check_attention, plot_attention
from parity.twins.cli.command_line import chat_command
from parity.twins.cli.options import ChatOptions
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.evaluation import in_batches
from parity.twins.decoding.hypotheses import DecodingModel, Hypotheses
from parity.twins.decoding.token_by_token import greedy_search, sample
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.training.checkpoint import (
    Checkpoint,
    checkpoint_to_use,
    load_checkpoint,
    read_vocabularies,
)
from parity.twins.training.image_files import check_picture
from parity.twins.training.strategy import Build

_PROMPT = "> "


@dataclass(frozen=True)
class Trained:
    """A trained network, read from disk.

    Attributes:
      checkpoint: the weights and the spec.
      words: how it reads and writes, from the vocabularies in the same folder.
      notes: lines that say which checkpoint of a folder it is.
    """

    checkpoint: Checkpoint
    words: PairCodec
    notes: Sequence[str] = ()


def chat_with(framework: str) -> None:
    """Answer questions with a framework as the command line says, and exit."""

    def chat(options: ChatOptions) -> None:
        trained = open_trained(options)

        def make_model() -> Any:
            side = FRAMEWORKS[framework]
            side.load("engine:load_engine")(options.threads, options.device)
            build = Build(device=options.device, threads=options.threads)
            decoder = side.load("decode:Decoder")(trained.checkpoint.spec, build)
            decoder.load(trained.checkpoint.snapshot)
            return decoder

        converse(make_model, trained, options)

    chat_command(framework, chat)


def open_trained(options: ChatOptions) -> Trained:
    """Read the checkpoint that the command line names, and its vocabularies.

    Raises:
      UsageError: if there is no checkpoint, its network writes no answers, or the vocabularies
        do not fit.
    """
    path = options.checkpoint
    if path is None:
        raise UsageError("--checkpoint is missing; allowed: a checkpoint, or a run's folder")
    folder, notes = path.parent, list[str]()
    if path.is_dir():
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        found = checkpoint_to_use(folder, notes, options.newest)
        if found is None:
            raise UsageError(f"{path}: holds no checkpoint")
        checkpoint = found
    else:
        checkpoint = load_checkpoint(path)
    spec = checkpoint.spec
    if not NETWORKS[spec.network].decodes:
        able = ", ".join(name for name, network in NETWORKS.items() if network.decodes)
        raise UsageError(
            f"{path}: a checkpoint of network {spec.network!r}, which answers nothing; "
            f"allowed: {able}"
        )
    beside = options.vocabulary or folder
    words = read_vocabularies(
        checkpoint, beside, lambda found: load_words(found, beside, spec.values())
    )
    return Trained(checkpoint, words, notes)


def converse(
    make_model: Callable[[], DecodingModel], trained: Trained, options: ChatOptions
) -> None:
    """Answer the questions of a file, or those of a person until the input ends.

    The output is UTF-8, as files are; control characters in an answer are printed escaped. An
    empty line of a file or a pipe has an empty answer, and the number of them is told.

    Args:
      make_model: builds the network with its weights; called after the input was checked.
      trained: the checkpoint and how to read and write.
      options: the command line.

    Raises:
      UsageError: for an option that is not allowed, or, naming the line, for a question of the
        file that cannot be answered; then none is answered.
    """
    for flag, path in (
        ("--output", options.output),
        ("--attention-plot", options.attention_plot),
    ):
        if path is not None and options.input is None:
            raise UsageError(f"{flag} is {str(path)!r}; allowed: only with --input")
    if options.input is None and sys.stdin is None:
        raise UsageError(
            "standard input is closed; allowed: a terminal, a pipe, or questions with --input"
        )
    if options.attention_plot is not None:
        check_picture(options.attention_plot)
    if sys.stdout.encoding.lower() != "utf-8" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    if options.input is None:
        _tell(trained.notes)
        _talk(make_model(), trained, options)
    else:
        _answer_file(make_model, trained, options, options.input)


def _answer_file(
    make_model: Callable[[], DecodingModel], trained: Trained, options: ChatOptions, path: Path
) -> None:
    """Answer the questions of a file, and write or print the answers."""
    lines_of_file = _read_all(path, trained.words)
    questions = [ids for ids in lines_of_file if ids is not None]
    if not questions:
        raise UsageError(f"{path}: there is no question in it")
    empty = [number for number, ids in enumerate(lines_of_file, start=1) if ids is None]
    _tell_empty(str(path), empty)
    # before any work
    if options.attention_plot is not None:
        longest = _max_tokens(trained, options)
        check_attention(options.attention_plot, [len(ids) for ids in questions], longest)
        check_output(options.attention_plot)
    if options.output is not None:
        check_output(options.output)
    _tell(trained.notes)
    model, words = make_model(), trained.words
    written, pictures = list[str](), list[Attention]()
    answers = _answers(model, questions, trained, options)
    for ids in lines_of_file:  # an empty line has an empty answer
        lines = [""]
        if ids is not None:
            found = next(answers)
            lines = _lines(found, words, options)
            if options.attention_plot is not None:
                pictures.append(_picture(ids, found, words))
        written += lines
        if options.output is None:
            _print(lines)
    if options.output is not None:
        write_whole(options.output, "".join(f"{line}\n" for line in written).encode())
    if options.attention_plot is not None:
        plot_attention(pictures, options.attention_plot)
        say(f"{options.attention_plot}: attention of {len(pictures):,} answers is drawn")


def _answers(
    model: DecodingModel,
    questions: Sequence[np.ndarray],
    trained: Trained,
    options: ChatOptions,
) -> Iterator[Hypotheses]:
    """Yield the answers to questions, of which some are answered at a time."""
    shown = options.output is not None
    for part in in_batches(len(questions), "answering", "question", shown):
        yield from _answer(model, questions[part], trained, options, part.start)


def _talk(model: DecodingModel, trained: Trained, options: ChatOptions) -> None:
    person, asked, empty = sys.stdin.isatty(), 0, list[int]()
    conversation: list[str] = []
    if person:
        spec = trained.checkpoint.spec
        say(
            f"{spec.model.cell} with {spec.model.attention} attention, trained for "
            f"{trained.checkpoint.step} steps by {trained.checkpoint.framework}; "
            f"it knows words such as {' '.join(trained.words.examples())}; "
            "an empty line or Ctrl-D ends"
        )
    for number, line in enumerate(_typed() if person else _piped(), start=1):
        if not line.strip():
            empty.append(number)
            conversation = []
            _print([""])
            continue
        try:
            ids = trained.words.read(line, conversation)
        except UsageError as error:
            if not person:
                raise UsageError(f"standard input, line {number}: {error}") from None
            say(str(error))
            continue
        (found,) = _answer(model, [ids], trained, options, asked)
        asked += 1
        conversation += [line, trained.words.write(found.best.tokens)]
        _print(_lines(found, trained.words, options))
        # not to a program, which reads one answer a line; nor with --top, which shows scores
        unsure = found.best.confidence < options.confidence
        if person and unsure and not options.top:
            seen, needed = found.best.confidence, options.confidence
            say(f"not sure: {seen:.1%} per token, less than {needed:.1%}")
    _tell_empty("standard input", empty)


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        say(note)


def _tell_empty(source: str, lines: Sequence[int]) -> None:
    """Say which lines held no question."""
    if lines:
        first = ", ".join(map(str, lines[:3])) + (", ..." if len(lines) > 3 else "")
        each = "line has" if len(lines) == 1 else "lines have"
        say(f"{source}: {len(lines):,} empty {each} an empty answer: {first}")


def _print(lines: Sequence[str]) -> None:
    """Print lines of answers, whose words come from the text that was trained on."""
    print("\n".join(map(escaped, lines)), flush=True)


def _typed() -> Iterator[str]:
    """Yield what a person types, up to an empty line or Ctrl-D."""
    with suppress(ImportError):  # not every Python has it; where it is, `input` edits the line
        import readline  # noqa: F401 - and keeps what was typed, for the arrow keys
    # otherwise the prompt would be among the answers
    prompt = _PROMPT if sys.stdout.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            print()
            return
        except UnicodeDecodeError as error:
            seen = f"byte 0x{error.object[error.start]:02x}"
            say(f"what was typed is not {error.encoding}: {seen}")
            continue
        if not line.strip():
            return
        yield line


def _piped() -> Iterator[str]:
    """Yield the lines of standard input, each as soon as it arrives."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            seen = f"byte 0x{line[error.start]:02x} is not UTF-8"
            raise UsageError(f"standard input, line {number}: {seen}") from None
        yield text.rstrip("\r\n")


def _read_all(path: Path, words: PairCodec) -> list[np.ndarray | None]:
    """Return the questions of a file, None for an empty line; say what is odd about it."""
    questions, notes = list[np.ndarray | None](), list[str]()
    for number, line in enumerate(read_lines(path, notes), start=1):
        try:
            questions.append(words.read(line) if line.strip() else None)
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error}") from None
    _tell(notes)
    return questions


def _answer(
    model: DecodingModel,
    questions: Sequence[np.ndarray],
    trained: Trained,
    options: ChatOptions,
    first: int,
) -> list[Hypotheses]:
    """Answer some questions; `first` is the number of the first, which sampling needs."""
    source, lengths = pad_sources(questions)
    max_tokens = _max_tokens(trained, options)
    if options.method == "greedy":
        return greedy_search(model, source, lengths, max_tokens)
    if options.method == "sample":
        return sample(
            model, source, lengths, max_tokens, options.seed, options.temperature, first
        )
    return beam_search(model, source, lengths, options.beam, options.length_penalty, max_tokens)


def _max_tokens(trained: Trained, options: ChatOptions) -> int:
    """Return the most tokens that an answer may have, `<eos>` included."""
    return options.longest or int(trained.checkpoint.spec.text.target_limit) + 1


def _lines(found: Hypotheses, words: PairCodec, options: ChatOptions) -> list[str]:
    if not options.top:
        return [words.write(found.best.tokens)]
    return [f"{each.score:9.4f}  {words.write(each.tokens)}" for each in found.ranked] + [""]


def _picture(ids: np.ndarray, found: Hypotheses, words: PairCodec) -> Attention:
    best = found.best
    target = words.target_vocabulary.decode(best.tokens) + ["<eos>"] * best.finished
    weights = best.weights if best.weights is not None else np.zeros((len(target), len(ids)))
    return words.source_vocabulary.decode(ids), target, weights[:, : len(ids)]
