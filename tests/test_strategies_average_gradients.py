"""`--shard-weights equal`: the tutorials' average, judged as what it is, and its distance."""

import pytest
from conftest import STEPS, assert_one_line, flags

from parity.report.terminal import report_text
from parity.report.verdict_page import report_html
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.spec.spec import Spec

STREAM = {"optimizer": "adam", "batching": "stream"}
EMPTY = 4  # the step in which only three rows have a token, the first ones


@pytest.fixture
def equal(frameworks, text, cache, tmp_path):
    """Return a function that records average-gradients with equal weights."""

    def run(replicas, edits=(), **given) -> Trace:
        folder = tmp_path / f"{replicas}"
        values = {"steps": STEPS, "dtype": "float64", "data": text, "cache": cache} | given
        values |= {"strategy": "average-gradients", "shard_weights": "equal"}
        words = flags(replicas=replicas, **values)
        job = frameworks["tensorflow"].train(*words, f"--trace={folder}", edits=edits)
        status, _, errors = job.wait()
        assert status == 0, errors
        return Trace(folder)

    return run


def test_on_uneven_shards_it_is_what_it_says_and_a_known_difference(run_both, equal):
    """7 rows of 5 tokens as 4 and 3, and once 3 and 0; every rung of it is judged."""
    both = run_both(replicas=2, **STREAM)
    trace = equal(2, **STREAM)
    verdict = compare_traces([*both.values(), trace])
    assert verdict.matches, verdict.mismatches
    label = "tensorflow-2 average-gradients"
    from_oracle = verdict.pairs[label, "oracle"]
    assert max(distance.relative for distance in from_oracle.values()) < 1e-11
    assert from_oracle["weight"].used is not None
    apart = verdict.pairs["tensorflow-2 towers", label]
    assert apart["gradient"].relative > 1e-3
    known = verdict.known[label]
    assert (known.compared, known.uneven, known.first) == (STEPS, STEPS, 0)
    assert known.tokens == [20, 15]
    assert 1e-3 < known.distance < known.largest
    assert known.largest_at == EMPTY
    # the shard without a token counts, too: half of the gradient is missing
    assert known.largest == pytest.approx(0.5)
    assert known.loss != known.exact_loss

    outcome = Outcome(Spec.from_json(trace.header["spec"]), verdict.sides, verdicts=[verdict])
    values = report_values(outcome, "tiny", "python -m parity run")
    assert values["verdict"] == "match"
    (told,) = values["runs"][0]["known_differences"]
    assert (told["side"], told["first"], told["tokens"]) == (label, 0, [20, 15])
    text, page = report_text(values), report_html(values)
    assert text.splitlines()[-1].endswith(f"a known difference of {label}")
    for each in (text, page):
        assert f"its gradient differs from the exact one by {known.distance:.2g}" in each


def test_a_wrong_average_is_not_excused(run_both, equal):
    """The known difference is the one that was asked for, and no other."""
    (wrong,) = (fault for fault in CATALOGUE if fault.name == "equal-but-for-the-others")
    both = run_both(replicas=2, **STREAM)
    verdict = compare_traces(
        [*both.values(), equal(2, edits=wrong.edits["tensorflow"], **STREAM)]
    )
    assert verdict.departing() == ["tensorflow-2 average-gradients"]
    assert verdict.mismatches[0].rung == "gradient"


def test_on_equal_shards_it_is_the_exact_training(run_both, equal):
    """6 rows as 2, 2 and 2 have as many tokens each, as long as all batches are full."""
    given = {**STREAM, "batch_size": 6, "steps": 4}
    towers = run_both(replicas=3, **given)["tensorflow"]
    trace = equal(3, **given)
    verdict = compare_traces([towers, trace])
    assert verdict.matches, verdict.mismatches
    pair = verdict.pairs["tensorflow-3 towers", "tensorflow-3 average-gradients"]
    assert max(distance.relative for distance in pair.values()) < 1e-11
    assert pair["weight"].used is not None
    known = verdict.known["tensorflow-3 average-gradients"]
    assert (known.uneven, known.first) == (0, None)
    assert "it had no effect" in str(known)


def test_isolated_steps_are_refused(frameworks, text, cache, tmp_path):
    words = flags(strategy="average-gradients", shard_weights="equal", data=text, cache=cache)
    words += ["--isolate", f"--trace={tmp_path / 'trace'}", "--steps=1"]
    status, _, errors = frameworks["tensorflow"].train(*words).wait()
    assert "--shard-weights is 'equal'" in assert_one_line(status, errors)
