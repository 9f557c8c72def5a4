"""The layout that a training would choose by itself, from what a benchmark has timed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parity.twins.bench.cases import BenchCase
from parity.twins.cli.options import BenchOptions, TrainOptions
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec
from parity.twins.training.measured_layout import Calibration, fastest, speeds_text, texts
from parity.twins.training.replicas_and_threads import Layout


def layout_cases(
    spec: Spec, options: BenchOptions, cases: Iterable[BenchCase]
) -> list[BenchCase]:
    """Return, of each side with its default strategy, the layouts that it would choose from.

    Args:
      spec: the network and its training.
      options: what is timed.
      cases: the configurations that are timed.
    """
    sides = dict.fromkeys(
        case.name
        for case in cases
        if not (case.is_peer or case.strategy or case.kernels == "plain" or case.stages > 1)
    )
    found = []
    for side in sides:
        entry = FRAMEWORKS[side].strategies.entry(None)
        train = TrainOptions(device=options.device, settings=entry.settings(options.settings))
        layouts = Calibration(side, entry, spec).candidates(train, spec.training.batch_size)
        found += [BenchCase(side, *layout) for layout in layouts if len(layouts) > 1]
    return found


def chosen_layouts(
    cases: Sequence[BenchCase], summaries: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return what each side would choose.

    Args:
      cases: what `layout_cases` returns.
      summaries: label -> the content of each run's summary.json.

    Returns:
      Name of the side -> `layout`, such as "2 x 1", and `seconds_per_step` (layout -> that of
      the fastest run).
    """
    seconds: dict[str, dict[Layout, float]] = {}
    for case in cases:
        measured = [summary["seconds_per_step"] for summary in summaries[case.label]]
        layout = Layout(case.replicas, case.threads)
        seconds.setdefault(case.name, {})[layout] = min(measured)  # other work only slows
    return {
        side: {
            "layout": fastest(each).text,
            "seconds_per_step": texts(each),
            "text": speeds_text(each),
        }
        for side, each in seconds.items()
    }


def layout_lines(chosen: Mapping[str, Any]) -> list[str]:
    """Return a line for each side that says what it would choose."""
    return [
        f"without --replicas and --threads, a long training of {side} runs {each['layout']}, "
        f"as replicas x threads ({each['text']})"
        for side, each in chosen.items()
    ]
