"""Options of the commands that change no result: where to run, on what, and for how long."""

from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UsageError
from parity.report.assertion import CAUSE_SECONDS
from parity.trace.rungs import CHECKS
from parity.twins.decoding.hypotheses import MOST_PENALTY
from parity.twins.spec.fields import check_fields, option
from parity.twins.spec.frameworks import FRAMEWORKS, synchronous_form
from parity.twins.spec.networks import DEFAULT_NETWORK
from parity.twins.spec.strategies import StrategySettings

_NETWORK = "network to train"
_PRESET = "named choice of sizes, text and training; other flags override its values"
_DATA = "text to train on: a folder with train.txt, valid.txt and test.txt, or with ptb.train.txt and so on, or a single text, which is split by itself; for seq2seq a file of tab-separated pairs, or a folder with train.tsv, valid.tsv and test.tsv [default: the built-in text]"
_GENERATED = (
    "text to train on, as train.py takes it [default: generated words from a Zipf distribution]"
)
_DICTIONARY = "seq2seq: file of words for jieba, one per line, each optionally followed by its frequency and its tag"
_EMPTY = "seq2seq: what to do with a pair that has an empty question or answer: skip leaves it out silently, warn leaves it out with a warning, error stops"
_CACHE = "folder that caches encoded texts, by their content"
_BEAM = "seq2seq: number of hypotheses kept in beam search"
_PENALTY = "seq2seq: exponent of the length penalty in beam search; 0 means no penalty"
_LONGEST = "seq2seq: greatest number of tokens in an answer [default: the limit that the network was trained with]"
_EVALUATE = "number of batches of the validation and of the test text to evaluate, the last batch of each among them; 0 for none"
_KERNELS = "plain: textbook layers, differentiated by the framework; fast: some of them replaced by faster code"
_DEVICE = "kind of device that replicas run on"
_HOSTS = "strategies of several processes: file that lists the hosts to start them on, this one first; see docs/many-machines.md [default: this one]"
_THREADS = "number of CPU threads of each replica"
_DEBUG = "print the traceback of an error"
_STRATEGIES = "strategies that run the replicas, separated by commas: names, of every framework that has them, or framework=strategy, such as tensorflow=towers; framework=all, or all, for every one; see docs/strategies.md [default: paddle=parallel-executor,tensorflow=towers]"
_SYNC = (
    "with --strategy parameter-server: its synchronous form, the strategy parameter-server-sync"
)
_DTYPES = "precisions to train in, separated by commas"
_SEVERAL_KERNELS = f"{_KERNELS}; several are separated by commas"
_JOBS = "number of runs at a time"
_MOST_THREADS = 1024  # an engine starts them all, and beyond some number ends with an abort


# Batches of a user's text that are evaluated in a trace: the oracle computes them as well, which
# takes long for a large network.
EVALUATED = 4


class Options:
    """The options of a command, checked when they are made."""

    def __post_init__(self) -> None:
        """Check them; with `--sync`, take the strategy that `--strategy` means then.

        Raises:
          UsageError: for a value out of range, or if there is no such strategy.
        """
        check_fields(self)
        values = vars(self)
        if values.get("sync"):
            given: tuple[str, ...] | str | None = values["strategy"] or None
            if isinstance(given, tuple):
                changed: object = tuple(map(synchronous_form, given))
            else:
                changed = synchronous_form(given)
            object.__setattr__(self, "strategy", changed)


# fmt: off
@dataclass(frozen=True)
class TrainOptions(Options):
    """Options of `train.py`, the same on both sides."""

    network: str = option(DEFAULT_NETWORK, _NETWORK)
    preset: str = option("tiny", _PRESET)
    data: Path | None = option(None, _DATA)
    user_dictionary: Path | None = option(None, _DICTIONARY)
    on_empty: str = option("warn", _EMPTY, choices=("skip", "warn", "error"))
    out: Path = option(Path("out/train"), "folder to write the run to: checkpoints, events, losses.csv, summary.json")
    cache: Path = option(Path("out/cache"), _CACHE)
    replicas: int | None = option(None, "number of replicas that share each batch [default: one per CPU core, or GPU, or one per --stages of them; at most 8]", at_least=1, at_most=65_536)
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    threads: int | None = option(None, f"{_THREADS}, or of each of its stages [default: its share of the CPU cores]", at_least=1, at_most=_MOST_THREADS)
    strategy: str | None = option(None, "strategy that runs the replicas; see docs/strategies.md [default: parallel-executor in Paddle, towers in TensorFlow]")
    sync: bool = option(False, _SYNC)
    settings: StrategySettings = StrategySettings()
    kernels: str = option("fast", _KERNELS, choices=("plain", "fast"))
    steps: int | None = option(None, "number of steps after which to stop, counted from the start of training; with --trace and an asynchronous strategy, number of updates [default: the end of the last epoch]", at_least=1)
    resume: str | None = option(None, "continue from a checkpoint, written by either framework: without a value the newest one in --out, otherwise the file given, or the newest one in the folder given")
    overwrite: bool = option(False, "replace the run that is already in --out")
    allow_change: bool = option(False, "let --resume continue with other flags or another text than the checkpoint's")
    checkpoint_every: int | None = option(None, "number of steps between checkpoints, in addition to the one after each epoch", at_least=1)
    max_restarts: int = option(0, "strategies of several processes: number of times to start all of them again, from the newest checkpoint in --out, after one was lost", at_least=0)
    hosts: Path | None = option(None, _HOSTS)
    i_trust_this_network: bool = option(False, "strategies of several processes: do not warn that the engine's ports are open to whoever reaches them; see docs/security.md")
    stall_seconds: float | None = option(None, "strategies of several processes: seconds that a step may take before its process is named and the training ended; the first may take ten times as long [default: 20 times the median step, at least 120]", at_least=1)
    evaluate_only: bool = option(False, "with --resume: do not train; evaluate the checkpoint on the validation and the test text, answer the test questions, and write evaluation.json and answers.jsonl to --out; of a folder, the checkpoint that is best on the validation text is evaluated")
    newest: bool = option(False, "at the end, and with --evaluate-only, test the newest weights in place of those that are best on the validation text")
    trace: Path | None = option(None, "record every tensor of every step in this folder, for a comparison; writes checkpoints only with --checkpoint-every, and evaluates only what --evaluate says")
    trace_pending: int | None = option(None, "with --trace: pause while this many recorded steps have not been read yet [default: never pause]", at_least=1)
    profile: Path | None = option(None, "only measure where the time of --steps steps goes, and write trace.json, for chrome://tracing, and profile.json to this folder")
    log_device_placement: bool = option(False, "print the device that each replica runs on")
    beam: int = option(5, _BEAM, at_least=1)
    length_penalty: float = option(0.6, _PENALTY, at_least=0, at_most=MOST_PENALTY)
    longest: int | None = option(None, _LONGEST, at_least=1)
    decode: int = option(8, "seq2seq, with --trace: number of test sentences to decode after the last step", at_least=0)
    evaluate: int | None = option(None, f"{_EVALUATE} [default: all; with --trace {EVALUATED} of a text that is not built in]", at_least=0)
    debug: bool = option(False, _DEBUG)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluate_only and (self.resume is None or self.trace is not None):
            seen = "without --resume" if self.resume is None else "with --trace"
            raise UsageError(
                f"--evaluate-only is given {seen}; allowed: with --resume and without --trace"
            )
        if self.max_restarts and (self.trace is not None or self.profile is not None):
            seen = "--profile" if self.trace is None else "--trace"
            raise UsageError(
                f"--max-restarts is given with {seen}; allowed: a run that writes checkpoints"
            )
        for name in ("trace", "resume"):
            if self.profile is not None and getattr(self, name) is not None:
                raise UsageError(f"--profile is given with --{name}; allowed: only one of them")

    @property
    def batches_evaluated(self) -> int | None:
        """Return how many batches of a split are evaluated at a time; None for all."""
        if self.evaluate is None and None not in (self.trace, self.data):
            return EVALUATED
        return self.evaluate

    @property
    def evaluates(self) -> bool:
        """Return whether the run needs the network without dropout, to evaluate it."""
        return self.evaluate != 0


@dataclass(frozen=True)
class ChatOptions(Options):
    """Options of `chat.py`, the same on both sides."""

    checkpoint: Path | None = option(None, "the trained network: a checkpoint of either framework, or a run's folder, of which the checkpoint that is best on the validation text is used, or the newest where none is known")
    newest: bool = option(False, "of a run's folder, use the newest checkpoint")
    vocabulary: Path | None = option(None, "folder with the vocabulary files [default: the checkpoint's folder]")
    input: Path | None = option(None, "file with questions to answer, one per line [default: read them from the terminal]")
    output: Path | None = option(None, "file to write the answers to, one per line [default: print them]")
    method: str = option("beam", "how to search for the answer", choices=("beam", "greedy", "sample"))
    beam: int = option(5, "number of hypotheses kept in beam search", at_least=1)
    length_penalty: float = option(0.6, "exponent of the length penalty in beam search; 0 means no penalty", at_least=0, at_most=MOST_PENALTY)
    top: bool = option(False, "show every hypothesis of the beam with its score, in nats")
    seed: int = option(1, "random seed for --method sample", at_least=0)
    temperature: float = option(1.0, "temperature for --method sample: below 1 favours likely words, above 1 unlikely ones", at_least=0.001, at_most=1000)
    longest: int | None = option(None, _LONGEST.removeprefix("seq2seq: "), at_least=1)
    confidence: float = option(0.9, "at a terminal: probability, the geometric mean over the tokens of an answer, below which it is followed by it, as not sure; 0 for never", at_least=0, at_most=1)
    attention_plot: Path | None = option(None, "picture to write that shows which words of the question each word of the answer attended to (.png, .svg or .pdf)")
    threads: int = option(1, "number of CPU threads", at_least=1, at_most=_MOST_THREADS)
    device: str = option("cpu", "kind of device that the network runs on", choices=("cpu", "gpu"))
    debug: bool = option(False, _DEBUG)


@dataclass(frozen=True)
class RunOptions(Options):
    """Options of `python -m parity run`."""

    network: str = option(DEFAULT_NETWORK, _NETWORK)
    preset: str | None = option(None, f"{_PRESET} [default: proof, whose first 12 steps meet every case; tiny with --data, and for a network without proof]")
    data: Path | None = option(None, _DATA)
    user_dictionary: Path | None = option(None, _DICTIONARY)
    on_empty: str = option("warn", _EMPTY, choices=("skip", "warn", "error"))
    out: Path = option(Path("out/parity"), "folder to write the report to")
    cache: Path = option(Path("out/cache"), _CACHE)
    json: Path | None = option(None, "file to write report.json to as well")
    frameworks: tuple[str, ...] = option((), "frameworks to compare, separated by commas, each beside the oracle too [default: all that train the network]")
    replicas: tuple[int, ...] = option((), "numbers of replicas to train with, separated by commas [default: 1,2,3; on GPUs no more than there are; with --hosts or --processes one for each process]", at_least=1, at_most=65_536)
    strategy: tuple[str, ...] = option((), _STRATEGIES)
    sync: bool = option(False, _SYNC)
    settings: StrategySettings = StrategySettings()
    hosts: Path | None = option(None, _HOSTS)
    kernels: tuple[str, ...] = option(("fast",), _SEVERAL_KERNELS, choices=("plain", "fast"))
    steps: int = option(12, "number of steps to compare; of an asynchronous side, number of updates", at_least=1)
    after_mismatch: int = option(5, "number of steps to measure after the first wrong one, to show whether the difference grows, stays or vanishes", at_least=0)
    cause_seconds: float = option(CAUSE_SECONDS, "seconds that the oracle may take, at the first wrong step, to make suspected mistakes itself until one explains the difference; 0: no search", at_least=0)
    dtype: tuple[str, ...] = option(("float64", "float32"), _DTYPES, choices=("float64", "float32"))
    beam: int = option(5, _BEAM, at_least=1)
    length_penalty: float = option(0.6, _PENALTY, at_least=0, at_most=MOST_PENALTY)
    decode: int = option(8, "seq2seq: number of test sentences to decode after the last step, greedily and by beam search", at_least=0)
    evaluate: int | None = option(None, f"{_EVALUATE} [default: all of the built-in text, {EVALUATED} of another]", at_least=0)
    checks: tuple[str, ...] = option(CHECKS, "what to check of whole runs once the recorded steps match, or none; see docs/verdict.md [default: all of them]", choices=(*CHECKS, "none"))
    witness: str | None = option(None, "train the same steps by the layers, loss, clipping, optimizers, schedule and reading of another framework, which shares less with the sides than the oracle does, and compare it like a side", choices=("pytorch",))
    throughput: bool = option(True, "afterwards train both sides without recording, and report speed and perplexity; where --steps is given, only if this is, too")
    keep_traces: bool = option(False, "keep the recorded tensors under --out")
    threads: int = option(1, _THREADS, at_least=1, at_most=_MOST_THREADS)
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    debug: bool = option(False, _DEBUG)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "none" in self.checks and len(self.checks) > 1:
            raise UsageError(f"--checks is {','.join(self.checks)}; allowed: none by itself")

    def wants(self, check: str) -> bool:
        """Return whether a rung of whole runs is to be checked; see `CHECKS`."""
        return check in self.checks


@dataclass(frozen=True)
class BenchOptions(Options):
    """Options of `python -m parity bench`."""

    network: str = option(DEFAULT_NETWORK, _NETWORK)
    preset: str | None = option(None, "named choice of sizes; other flags override its values [default: bench, and four-layers with --strategies; for seq2seq both chatbot and nmt-bahdanau]")
    data: Path | None = option(None, _GENERATED)
    out: Path = option(Path("out/bench"), "folder to write bench.json, bench.txt and bench.html to")
    cache: Path = option(Path("out/cache"), _CACHE)
    json: Path | None = option(None, "file to write bench.json to as well")
    history: Path = option(Path("out/bench/history.jsonl"), "file that each benchmark is added to; slowdowns since the last recorded commit on this processor are reported")
    replicas: tuple[int, ...] = option((1, 2), "numbers of replicas to time, separated by commas", at_least=1, at_most=65_536)
    strategy: tuple[str, ...] = option((), _STRATEGIES)
    sync: bool = option(False, _SYNC)
    strategies: tuple[str, ...] = option((), "strategies to time, separated by commas, or all; framework=strategy for one framework alone. Each is timed with every number of --replicas, beside its counterpart in PyTorch and Keras where these are installed")
    settings: StrategySettings = StrategySettings()
    kernels: tuple[str, ...] = option(("fast",), _SEVERAL_KERNELS, choices=("plain", "fast"))
    steps: int = option(40, "number of training steps in each run, warm-up included", at_least=10)
    rounds: int = option(3, "number of rounds; each round runs every configuration once", at_least=1)
    threads: int = option(1, _THREADS, at_least=1, at_most=_MOST_THREADS)
    peers: bool = option(False, "also time the same network in PyTorch, and the language model in Keras; this adds two layouts for all of them, one replica with a thread per core and one replica per core. With --strategies it only demands that both are installed")
    check: bool = option(True, "before timing, compare two steps of every configuration of both sides with the oracle; and the weights after the timed steps with those of the same steps, recorded")
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    debug: bool = option(False, _DEBUG)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy and self.strategies:
            raise UsageError(
                "--strategy is given with --strategies; allowed: only one of them"
            )


@dataclass(frozen=True)
class ConvergeOptions(Options):
    """Options of `python -m parity converge`."""

    network: str = option(DEFAULT_NETWORK, _NETWORK)
    preset: str = option("tiny", _PRESET)
    data: Path | None = option(None, _DATA)
    user_dictionary: Path | None = option(None, _DICTIONARY)
    on_empty: str = option("warn", _EMPTY, choices=("skip", "warn", "error"))
    out: Path = option(Path("out/converge"), "folder to write the trainings and converge.json, converge.txt and converge.html to; a training that is already there is not repeated")
    cache: Path = option(Path("out/cache"), _CACHE)
    json: Path | None = option(None, "file to write converge.json to as well")
    seeds: int = option(5, "number of seeds to train each side from, beginning with --seed", at_least=2)
    strategy: tuple[str, ...] = option((), _STRATEGIES)
    settings: StrategySettings = StrategySettings()
    peers: tuple[str, ...] = option((), "other frameworks to train beside both sides, separated by commas", choices=("pytorch",))
    margin: float = option(0.01, "largest relative difference of perplexities that counts as equivalent", above=0)
    margin_bleu: float = option(2.0, "seq2seq: largest difference of BLEU, in points, that counts as equivalent", above=0)
    margin_exact: float = option(0.03, "seq2seq: largest difference of the share of exact answers that counts as equivalent", above=0)
    replicas: int = option(1, "number of replicas on each side", at_least=1, at_most=65_536)
    kernels: str = option("fast", _KERNELS, choices=("plain", "fast"))
    beam: int = option(5, _BEAM, at_least=1)
    length_penalty: float = option(0.6, _PENALTY, at_least=0, at_most=MOST_PENALTY)
    jobs: int = option(2, _JOBS, at_least=1, at_most=_MOST_THREADS)
    threads: int = option(1, _THREADS, at_least=1, at_most=_MOST_THREADS)
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    debug: bool = option(False, _DEBUG)


@dataclass(frozen=True)
class ProfileOptions(Options):
    """Options of `python -m parity profile`."""

    network: str = option(DEFAULT_NETWORK, _NETWORK)
    preset: str | None = option(None, "named choice of sizes; other flags override its values [default: bench; for seq2seq chatbot]")
    data: Path | None = option(None, _GENERATED)
    out: Path = option(Path("out/profile"), "folder to write trace.json, profile.json and profile.txt to")
    cache: Path = option(Path("out/cache"), _CACHE)
    json: Path | None = option(None, "file to write profile.json to as well")
    replicas: int = option(2, "number of replicas on each side", at_least=1, at_most=65_536)
    strategy: tuple[str, ...] = option((), _STRATEGIES)
    settings: StrategySettings = StrategySettings()
    steps: int = option(35, "number of training steps on each side, warm-up included; half of the steps after warm-up are profiled", at_least=9)
    operations: int = option(12, "number of operations to list for each side", at_least=1)
    threads: int = option(1, _THREADS, at_least=1, at_most=_MOST_THREADS)
    device: str = option("cpu", _DEVICE, choices=("cpu", "gpu"))
    debug: bool = option(False, _DEBUG)


@dataclass(frozen=True)
class FaultOptions(Options):
    """Options of `python -m parity faults`."""

    only: tuple[str, ...] = option((), "names of the faults to plant, separated by commas [default: all]")
    strategy: tuple[str, ...] = option((), "strategies to plant faults in, such as layers,mirrored or, of one side alone, tensorflow=layers [default: all]")
    frameworks: tuple[str, ...] = option(tuple(FRAMEWORKS), "frameworks in whose code to plant the faults, one at a time", choices=tuple(FRAMEWORKS))
    dtype: tuple[str, ...] = option(("float64", "float32"), _DTYPES, choices=("float64", "float32"))
    kernels: tuple[str, ...] = option(("fast",), _SEVERAL_KERNELS, choices=("plain", "fast"))
    out: Path = option(Path("out/faults"), "folder to write faults.json and faults.txt to")
    json: Path | None = option(None, "file to write faults.json to as well")
    once: bool = option(False, "plant each fault only once, taking turns between frameworks and kernels")
    jobs: int = option(2, _JOBS, at_least=1, at_most=_MOST_THREADS)
    list_only: bool = option(False, "only print the catalogue of faults")
    show: str | None = option(None, "only print what this fault changes in the source")
    pages: bool = option(False, "write a report page for every mismatch under --out")
    keep: bool = option(False, "keep the traces of the faulty runs under --out")
    debug: bool = option(False, _DEBUG)


@dataclass(frozen=True)
class SweepOptions(Options):
    """Options of `python -m parity sweep`."""

    count: int = option(500, "number of random runs", at_least=1)
    seed: int = option(1, "random seed from which the runs are drawn", at_least=0)
    start: int = option(0, "number of the first run to train; results of earlier runs are read from --out", at_least=0)
    only: tuple[int, ...] = option((), "numbers of the runs to train, separated by commas [default: all from --start on]", at_least=0)
    strategy: tuple[str, ...] = option((), "strategies to draw from: each run draws one for each framework, with random settings; all, names, or framework=strategy; see docs/strategies.md [default: paddle=parallel-executor,tensorflow=towers]")
    kernels: tuple[str, ...] = option(("fast",), f"{_SEVERAL_KERNELS}; runs take turns", choices=("plain", "fast"))
    harmless: bool = option(False, "in place of random runs, train sides with harmless rewrites of their code, which change nothing but rounding, each in both precisions and in each of --kernels")
    jobs: int = option(2, _JOBS, at_least=1, at_most=_MOST_THREADS)
    out: Path = option(Path("out/sweep"), "folder to write sweep.json, sweep.txt and runs.jsonl to")
    json: Path | None = option(None, "file to write sweep.json to as well")
    keep: bool = option(False, "keep the texts and traces of all runs under --out, not only of false alarms")
    debug: bool = option(False, _DEBUG)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("only", "strategy"):
            if self.harmless and getattr(self, name):
                raise UsageError(f"--{name} is given with --harmless; allowed: without it")


@dataclass(frozen=True)
class ScaleOptions(Options):
    """Options of `python -m parity scale`."""

    network: str = option(DEFAULT_NETWORK, _NETWORK)
    preset: str = option("bench", _PRESET)
    out: Path = option(Path("out/scale"), "folder to write scale.json and scale.txt to")
    cache: Path = option(Path("out/cache"), _CACHE)
    sides: tuple[str, ...] = option(tuple(FRAMEWORKS), "frameworks whose step is measured, separated by commas", choices=tuple(FRAMEWORKS))
    links: tuple[str, ...] = option(("ethernet=1gbit/0.1ms", "fast=10gbit/0.05ms", "fabric=100gbit/0.01ms"), "links between hosts, separated by commas, each as NAME=BANDWIDTH/LATENCY: bits per second in mbit or gbit, and the time one way in ms")
    local: str = option("40gbit/0.01ms", "link between two ranks of one host, as BANDWIDTH/LATENCY")
    compute: str | None = option(None, "seconds of a step without communication, as FIXED/PER_ROW [default: measured here]")
    per_host: int = option(8, "ranks of one host, for the hierarchical ring", at_least=1)
    servers: int = option(8, "number of parameter servers", at_least=1, at_most=65_536)
    most: int = option(1024, "greatest number of ranks", at_least=1, at_most=65_536)
    steps: int = option(20, "number of steps of each training that is timed, warm-up included", at_least=10)
    debug: bool = option(False, _DEBUG)
# fmt: on
