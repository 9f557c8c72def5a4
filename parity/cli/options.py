"""What a command may be told that changes no result: where, on what, how long."""

from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.fields import check_fields, option

_NETWORK = "which network"
_PRESET = "named sizes and training; flags given beside it win"
_DATA = "folder of text (train.txt, valid.txt, test.txt or ptb.*.txt), for seq2seq a file of pairs, tab-separated, or a folder of train.tsv, valid.tsv and test.tsv [the embedded corpus]"
_DICTIONARY = "seq2seq: words for jieba, one a line, with frequency and tag if wanted"
_EMPTY = (
    "seq2seq: pairs with an empty side are left out in silence, with a warning, or are an error"
)
_BEAM = "seq2seq: hypotheses kept in beam search"
_PENALTY = "seq2seq: exponent of the length penalty, 0 for none"
_KERNELS = "plain: the textbook layers, differentiated by the framework; fast: what replaces some of them for speed"
_DEVICE = "what replicas run on"
_THREADS = "CPU threads of each replica"
_GENERATED = "text, as train.py takes it [generated: words of a Zipf distribution]"


# fmt: off
@dataclass(frozen=True)
class TrainOptions:
    """Options of `train.py`, the same on both sides."""

    network: str = option("language-model", _NETWORK)
    preset: str = option("tiny", _PRESET)
    data: Path | None = option(None, _DATA)
    user_dictionary: Path | None = option(None, _DICTIONARY)
    on_empty: str = option("warn", _EMPTY, choices=("skip", "warn", "error"))
    out: Path = option(Path("out/train"), "folder of the run: checkpoints, events, summary.json")
    cache: Path = option(Path("out/cache"), "folder of encoded corpora, keyed by content")
    replicas: int | None = option(None, "replicas that share each batch [one a core, at most 8]", at_least=1)
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    threads: int | None = option(None, f"{_THREADS} [its share of the cores]", at_least=1)
    strategy: str | None = option(None, "how replicas run; see docs/strategies.md [the framework's first]")
    kernels: str = option("fast", _KERNELS, choices=("plain", "fast"))
    steps: int | None = option(None, "stop at this step, counted over epochs", at_least=1)
    resume: str | None = option(None, "go on from the newest checkpoint of --out, or of the file or folder named; either framework's")
    overwrite: bool = option(False, "replace the run that is in --out")
    allow_change: bool = option(False, "resume although other flags or text differ")
    checkpoint_every: int | None = option(None, "steps between checkpoints, beside one each epoch", at_least=1)
    trace: Path | None = option(None, "record every tensor of every step in this folder; no checkpoints or evaluation")
    trace_pending: int | None = option(None, "wait while so many recorded steps lie unread", at_least=1)
    isolate: bool = option(False, "with --trace: every layer reads the oracle's inputs, every step starts from its weights")
    profile: Path | None = option(None, "only see where the time of --steps steps goes, and write it to this folder: trace.json for chrome://tracing, profile.json")
    log_device_placement: bool = option(False, "print where each replica runs")
    beam: int = option(5, _BEAM, at_least=1)
    length_penalty: float = option(0.6, _PENALTY, at_least=0)
    decode: int = option(8, "seq2seq: test sentences decoded at the end of a --trace", at_least=0)
    debug: bool = option(False, "show tracebacks")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.isolate and (self.trace is None or self.resume is not None):
            seen = "without --trace" if self.trace is None else "with --resume"
            raise UsageError(
                f"--isolate is given {seen}; allowed: with --trace, from the first step on"
            )
        for name in ("trace", "resume"):
            if self.profile is not None and getattr(self, name) is not None:
                raise UsageError(f"--profile is given with --{name}; allowed: one of them")


@dataclass(frozen=True)
class ChatOptions:
    """Options of `chat.py`, the same on both sides."""

    checkpoint: Path | None = option(None, "the trained network: a checkpoint of either framework, or a run's folder for its newest")
    vocabulary: Path | None = option(None, "folder of the vocabularies [that of the checkpoint]")
    input: Path | None = option(None, "answer the lines of this file [what is typed]")
    output: Path | None = option(None, "write the answers to this file, one a line [print them]")
    method: str = option("beam", "how to answer", choices=("beam", "greedy", "sample"))
    beam: int = option(5, "hypotheses kept in beam search", at_least=1)
    length_penalty: float = option(0.6, "exponent of beam search's length penalty, 0 for none", at_least=0)
    top: bool = option(False, "show all hypotheses with their scores, in nats")
    seed: int = option(1, "of sampling", at_least=0)
    temperature: float = option(1.0, "of sampling; below 1 likelier words, above 1 bolder ones", above=0)
    longest: int | None = option(None, "most tokens of an answer [the limit it was trained with]", at_least=1)
    attention_plot: Path | None = option(None, "draw what each word of the answers looked at")
    threads: int = option(1, "CPU threads", at_least=1)
    device: str = option("cpu", "what the network runs on", choices=("cpu", "gpu"))
    debug: bool = option(False, "show tracebacks")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class RunOptions:
    """Options of `python -m parity run`."""

    network: str = option("language-model", _NETWORK)
    preset: str = option("tiny", _PRESET)
    data: Path | None = option(None, _DATA)
    user_dictionary: Path | None = option(None, _DICTIONARY)
    on_empty: str = option("warn", _EMPTY, choices=("skip", "warn", "error"))
    out: Path = option(Path("out/parity"), "folder of the report")
    cache: Path = option(Path("out/cache"), "folder of encoded corpora, keyed by content")
    json: Path | None = option(None, "also write report.json here")
    replicas: tuple[int, ...] = option((1, 2), "replica counts to run and compare, such as 1,2,4", at_least=1)
    strategy: tuple[str, ...] = option((), "how replicas run: framework=strategy, such as tensorflow=towers,tensorflow=average-gradients; see docs/strategies.md [each framework's first]")
    kernels: tuple[str, ...] = option(("fast",), f"{_KERNELS}; or both, plain,fast", choices=("plain", "fast"))
    steps: int = option(20, "steps to compare", at_least=1)
    dtype: tuple[str, ...] = option(("float64", "float32"), "precisions, such as float64,float32", choices=("float64", "float32"))
    beam: int = option(5, _BEAM, at_least=1)
    length_penalty: float = option(0.6, _PENALTY, at_least=0)
    decode: int = option(8, "seq2seq: test sentences decoded after the last step, greedily and by beam search", at_least=0)
    isolate: bool = option(False, "feed every layer of both sides the oracle's inputs, so that each wrong layer is found by itself; no untraced training")
    throughput: bool = option(True, "also train both sides untraced, for speed and perplexity")
    keep_traces: bool = option(False, "keep the recorded tensors under --out")
    threads: int = option(1, _THREADS, at_least=1)
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    debug: bool = option(False, "show tracebacks")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class BenchOptions:
    """Options of `python -m parity bench`."""

    network: str = option("language-model", _NETWORK)
    preset: str | None = option(None, "named sizes; flags given beside it win [bench; for seq2seq both chatbot and nmt-bahdanau]")
    data: Path | None = option(None, _GENERATED)
    out: Path = option(Path("out/bench"), "folder of bench.json, bench.txt and bench.html, a page")
    cache: Path = option(Path("out/cache"), "folder of encoded corpora, keyed by content")
    json: Path | None = option(None, "also write bench.json here")
    replicas: tuple[int, ...] = option((1, 2), "replica counts to time, such as 1,2,4", at_least=1)
    strategy: tuple[str, ...] = option((), "how replicas run: framework=strategy, such as tensorflow=average-gradients; see docs/strategies.md [each framework's first]")
    kernels: tuple[str, ...] = option(("fast",), f"{_KERNELS}; or both, plain,fast", choices=("plain", "fast"))
    steps: int = option(40, "training steps of one run, warm-up included", at_least=10)
    rounds: int = option(3, "runs of each side and replica count, taken in turn", at_least=1)
    threads: int = option(1, _THREADS, at_least=1)
    peers: bool = option(False, "time PyTorch too, and Keras on the language model, and all of them on one replica with a thread per core and on a replica per core")
    check: bool = option(True, "first hold two steps of every configuration of the sides against the oracle")
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    debug: bool = option(False, "show tracebacks")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class ProfileOptions:
    """Options of `python -m parity profile`."""

    network: str = option("language-model", _NETWORK)
    preset: str | None = option(None, "named sizes; flags given beside it win [bench; for seq2seq chatbot]")
    data: Path | None = option(None, _GENERATED)
    out: Path = option(Path("out/profile"), "folder of trace.json, profile.json and profile.txt")
    cache: Path = option(Path("out/cache"), "folder of encoded corpora, keyed by content")
    json: Path | None = option(None, "also write profile.json here")
    replicas: int = option(2, "replicas of each side", at_least=1)
    steps: int = option(35, "training steps of each side, warm-up included; half of the rest are profiled", at_least=9)
    operations: int = option(12, "operations of each side in the table", at_least=1)
    threads: int = option(1, _THREADS, at_least=1)
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    debug: bool = option(False, "show tracebacks")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class FaultOptions:
    """Options of `python -m parity faults`."""

    only: tuple[str, ...] = option((), "faults to plant, such as gates-i-f,no-mask [all]")
    sides: tuple[str, ...] = option(("paddle", "tensorflow"), "sides to plant them in, one at a time", choices=("paddle", "tensorflow"))
    dtype: tuple[str, ...] = option(("float64", "float32"), "precisions, such as float64,float32", choices=("float64", "float32"))
    kernels: tuple[str, ...] = option(("fast",), "kernels to train with, such as plain,fast", choices=("plain", "fast"))
    out: Path = option(Path("out/faults"), "folder of faults.json and faults.txt")
    json: Path | None = option(None, "also write faults.json here")
    once: bool = option(False, "plant each fault only once; sides and kernels take turns")
    jobs: int = option(2, "runs at a time", at_least=1)
    list_only: bool = option(False, "print the catalogue, and plant nothing")
    show: str | None = option(None, "print what this fault changes, and plant nothing")
    pages: bool = option(False, "write the report's page of every mismatch under --out")
    keep: bool = option(False, "keep the traces of the faulty runs under --out")
    save_signatures: bool = option(False, "keep the signatures that were seen as the reference for likely causes")
    record: bool = option(False, "if all are found, record these sources as hunted; needs both sides, precisions and kernels")
    unless_recorded: bool = option(False, "plant nothing if these very sources are recorded as hunted")
    debug: bool = option(False, "show tracebacks")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SweepOptions:
    """Options of `python -m parity sweep`."""

    count: int = option(500, "how many runs are drawn", at_least=1)
    seed: int = option(1, "that they are drawn from", at_least=0)
    start: int = option(0, "number of the first run; those before it are taken from --out", at_least=0)
    only: tuple[int, ...] = option((), "numbers of the runs to do, such as 17,203 [all from --start on]", at_least=0)
    kernels: tuple[str, ...] = option(("fast",), "kernels to train with; if several, such as plain,fast, runs take turns", choices=("plain", "fast"))
    jobs: int = option(2, "runs at a time", at_least=1)
    out: Path = option(Path("out/sweep"), "folder of sweep.json, sweep.txt and runs.jsonl")
    json: Path | None = option(None, "also write sweep.json here")
    keep: bool = option(False, "keep texts and traces of all runs under --out, not of false alarms alone")
    debug: bool = option(False, "show tracebacks")

    def __post_init__(self) -> None:
        check_fields(self)
# fmt: on
