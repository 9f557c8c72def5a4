"""Runs a side again, its modules reading what the other side recorded: `parity localise`."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from parity.align.mapping import NameMapping
from parity.align.weights import write_weights
from parity.base.errors import UsageError
from parity.base.text import counted, escaped
from parity.cli.measure_bounds import run_again
from parity.compare.choice import Choice, chosen
from parity.compare.measured_bounds import MeasuredBounds
from parity.compare.recorded_pair import PairVerdict, compare_pair
from parity.compare.tensors import Mismatch
from parity.report.table import wrapped
from parity.trace.reader import Trace
from parity.trace.tolerances import Tolerance

_SAME = NameMapping(("a", "b"), [], {}, ([], []))
_GIVEN = ("forward", "activation_gradient")
_OF_UPDATE = ("clipped_gradient", "optimizer", "weight")


def localise(
    traces: Sequence[Trace],
    mapping: NameMapping | None,
    command: Sequence[str],
    tolerances: Mapping[str, Tolerance] | None = None,
    bounds: MeasuredBounds | None = None,
) -> bool:
    """Print which tensors of the first wrong step are wrong by themselves.

    Args:
      mapping: what of one trace is what of the other; None: what has the same name.
      command: what recorded the second trace.
      tolerances: rung, or pattern of names -> tolerance, in place of what the traces declare.
      bounds: how far tensors may be apart that nobody declared, as `parity bounds` measured.

    Returns:
      Whether the two match.

    Raises:
      UsageError: if the two cannot be compared, do not start alike, the second takes over no
        values, or the command fails.
    """

    for trace in traces:
        if not trace.of_recorder:
            raise UsageError(
                f"{trace.folder}: was recorded by a train.py of this project; allowed: watched "
                "trainings"
            )

    def compared(traces: Sequence[Trace], steps: range | None = None) -> PairVerdict:
        parts, _ = chosen(_views(traces, mapping), Choice(steps=steps))
        return compare_pair(parts, tolerances, measured=bounds)

    found = compared(traces)
    if found.matches:
        print("verdict: match")
        return True
    first = found.mismatches[0]
    step = first.place.step
    if first.rung == "batch":
        raise UsageError(
            f"{first.place.tensor} differs in step {step}, before anything is computed; "
            "allowed: sides that start alike, as parity weights makes them"
        )
    packages = traces[1].header["versions"].keys()
    if "jax" in packages or packages >= {"keras", "torch"}:
        raise UsageError(
            f"{traces[1].folder}: its modules take over nothing from the other side; allowed: "
            "PyTorch, Paddle, TensorFlow, and Keras on TensorFlow"
        )
    shared, own = _views(traces, mapping)[0].read(step), traces[1].read(step)
    with tempfile.TemporaryDirectory(prefix="parity-localise-") as folder:
        file = Path(folder) / "given"
        write_weights((mapping or _SAME).in_terms_of(1, shared, own, _GIVEN), file)
        asked = {"given": str(file), "step": step}
        again = run_again(traces[1], command, Path(folder) / "again", **asked)
        alone = compared([traces[0], again], range(step, step + 1))
    guilty = _guilty(alone)
    for each in guilty:
        name = each.place.tensor
        how = each.problem or f"{each.count:,} of {each.size:,} elements"
        source = alone.sources[each.sides[1]].get(name)
        print(wrapped(escaped(f"wrong: {name}: {how}{f'; {source}' if source else ''}"), "  "))
    rest = {each.place.tensor for each in found.mismatches} - {g.place.tensor for g in guilty}
    print(
        f"step {step}, each module on its own: {len(guilty)} wrong; "
        f"{counted(len(rest), 'other tensor')} only followed"
    )
    return False


def _views(traces: Sequence[Trace], mapping: NameMapping | None) -> Sequence[Trace]:
    return traces if mapping is None else mapping.mapped(traces)


def _guilty(verdict: PairVerdict) -> list[Mismatch]:
    """Return the wrong tensors without the updates that follow from a wrong gradient."""
    names = [each.place.tensor for each in verdict.mismatches]
    gradients = {n.removeprefix("gradient/") for n in names if n.startswith("gradient/")}
    clips = any(name.startswith("clipped_gradient/") for name in verdict.tensors)

    def follows(name: str) -> bool:
        kind, _, rest = name.partition("/")
        mine = rest in gradients or rest.rpartition("/")[0] in gradients
        return kind in _OF_UPDATE and bool(gradients) and (clips or mine)

    return [each for each in verdict.mismatches if not follows(each.place.tensor)]
