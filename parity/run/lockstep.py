"""`python -m parity run`: both sides trained step by step beside the oracle, and a verdict."""

import itertools
import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parity.base.files import make_folder, write_whole
from parity.base.progress import Counter
from parity.cli.options import RunOptions
from parity.compare.ladder import Ladder
from parity.compare.outcome import Outcome
from parity.launch.fork_server import ForkServer
from parity.launch.processes import SideProcess
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.networks import NETWORKS
from parity.spec.spec import Spec
from parity.trace.side import Side, labels_of
from parity.trace.trace import clear_trace, wait_for_trace

_MOST_PENDING = 3  # steps that a side may be ahead of the comparison
_TIMED_STEPS = 60  # untraced, for throughput alone, where the whole training would be long
_LEARNING_EPOCHS = 5  # of the embedded text: enough to see that a network learns


Servers = Mapping[str, ForkServer]  # by framework; empty where each side is started anew


def run(spec: Spec, options: RunOptions) -> Outcome:
    """Train all sides in lockstep with the oracle, then untraced.

    Args:
      spec: its dtype is replaced by each of the options' in turn.

    Raises:
      UsageError: for input that cannot be used, as the sides found it.
      NumericFailure: for a NaN or infinity on any side.
    """
    make_folder(options.out)
    if options.json is not None:
        make_folder(options.json.parent)  # now, not after minutes of training
    outcome = Outcome(spec)
    with ExitStack() as stack:
        servers = _servers(options, stack) if options.device == "cpu" else {}
        for dtype in options.dtype:
            ladder = _compare(spec.replace(dtype=dtype), options, outcome, servers)
            outcome.verdicts.append(ladder.verdict)
            if not ladder.verdict.matches:
                return outcome
        if options.throughput and not options.isolate:
            _train_untraced(spec, options, outcome, servers, ladder.per_epoch)
    return outcome


def _servers(options: RunOptions, stack: ExitStack) -> Servers:
    """Load each framework once: it takes as long as many a training that is compared."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="parity-")))
    logs = options.out / "logs"
    make_folder(logs)
    return {
        framework: stack.enter_context(
            ForkServer(
                framework, folder / framework, options.threads, logs / f"{framework}.log"
            )
        )
        for framework in FRAMEWORKS
    }


def _compare(spec: Spec, options: RunOptions, outcome: Outcome, servers: Servers) -> Ladder:
    dtype = spec.training.dtype
    sides = [(f, n) for n in options.replicas for f in FRAMEWORKS]
    labels = labels_of([Side(f, replicas=n) for f, n in sides])
    with ExitStack() as stack:
        running, traces = [], {}
        for label, (framework, replicas) in zip(labels, sides, strict=True):
            folder = options.out / "traces" / dtype / label
            clear_trace(folder)
            side = SideProcess(
                framework,
                spec,
                options.out / "logs" / f"{label}-{dtype}.log",
                servers[framework].side if servers else None,
                preset=options.preset,
                data=options.data,
                cache=options.cache,
                replicas=replicas,
                device=options.device,
                threads=options.threads,
                steps=options.steps,
                trace=folder,
                trace_pending=None if options.keep_traces else _MOST_PENDING,
                debug=options.debug,
                decode=options.decode,
                isolate=options.isolate,
                **_of_pairs(spec, options),
            )
            running.append(stack.enter_context(side))

        def alive(waited_for: SideProcess) -> bool:
            for side in running:
                side.check()
            return not waited_for.ended()

        checks = [partial(alive, side) for side in running]
        for label, check in zip(labels, checks, strict=True):
            trace = wait_for_trace(options.out / "traces" / dtype / label, check)
            traces[label] = trace
            outcome.sides[label] = trace.side
            outcome.versions |= trace.header["versions"]
        ladder = Ladder({label: trace.header for label, trace in traces.items()})
        outcome.spec = ladder.spec
        readers = [
            trace.follow(options.steps, check, delete=not options.keep_traces)
            for trace, check in zip(traces.values(), checks, strict=True)
        ]
        progress = stack.enter_context(Counter(f"comparing, {dtype}", options.steps, "step"))
        for step, recorded in enumerate(zip(*readers, strict=True)):
            ladder.step(step, dict(zip(traces, recorded, strict=True)))
            progress.update()
            if not ladder.verdict.matches:
                break  # the sides are stopped, and the step's files stay where they are
        else:
            for side in running:
                side.wait()
            if not options.keep_traces:
                for trace in traces.values():
                    clear_trace(trace.folder)
    return ladder


def _train_untraced(
    spec: Spec, options: RunOptions, outcome: Outcome, servers: Servers, per_epoch: int
) -> None:
    """Train each side alone on the machine, for its speed and what it learns.

    What it learns is seen at the last replica count: traced steps have shown that the others
    are the same training. They do an epoch of it, for their speed.
    """
    whole = options.data is None and options.preset == "tiny"
    dtype = options.dtype[-1]
    if whole:
        spec = spec.replace(epochs=min(spec.training.epochs, _LEARNING_EPOCHS))
    trained = list(itertools.product(options.replicas, FRAMEWORKS))
    labels = labels_of([Side(f, replicas=n) for n, f in trained])
    for label, (replicas, framework) in zip(labels, trained, strict=True):
        out = options.out / "training" / label
        steps: int | None = _TIMED_STEPS
        if whole:
            learns = replicas == options.replicas[-1]
            steps = None if learns else per_epoch
        with SideProcess(
            framework,
            spec.replace(dtype=dtype),
            options.out / "logs" / f"{label}-training.log",
            servers[framework].side if servers else None,
            preset=options.preset,
            data=options.data,
            cache=options.cache,
            replicas=replicas,
            device=options.device,
            threads=options.threads,
            steps=steps,
            out=out,
            overwrite=True,
            debug=options.debug,
            **_of_pairs(spec, options),
        ) as side:
            side.wait()
        outcome.trainings[label] = json.loads((out / "summary.json").read_text())


def _of_pairs(spec: Spec, options: RunOptions) -> dict[str, Any]:
    """Return the options that only a network of pairs reads."""
    if not NETWORKS[spec.network].decodes:
        return {}
    names = ("user_dictionary", "on_empty", "beam", "length_penalty")
    return {name: getattr(options, name) for name in names}


def save_report(
    text: str, page: str, values: dict[str, Any], out: Path, extra: Path | None
) -> None:
    """Write report.txt, .html and .json whole or not at all, and the last to `extra` too."""
    write_whole(out / "report.txt", text.encode() + b"\n")
    write_whole(out / "report.html", page.encode())
    save_values(values, out / "report.json")
    if extra is not None:
        save_values(values, extra)


def save_values(values: dict[str, Any], path: Path) -> None:
    """Write a report's values as JSON, whole or not at all."""
    make_folder(path.parent)
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")
