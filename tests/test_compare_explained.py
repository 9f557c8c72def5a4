"""What explains the difference of two trainings: planted in real ones, found by its traces."""

from dataclasses import replace

import numpy as np
import pytest
from planted_pairs import MISTAKES
from test_align import ROOT, end, start

from parity import Recorder, Tolerance, Trace
from parity.align.proposal import propose
from parity.compare.choice import WHOLE, chosen
from parity.compare.recorded_pair import compare_pair
from parity.compare.relation import Axis, ends_of_rows, explanations, meaning, rounded
from parity.report.assertion import compared
from parity.report.terminal import report_text


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record all planted pairs."""
    folder = tmp_path_factory.mktemp("planted")
    script = ROOT / "tests" / "planted_pairs.py"
    end(*(start(script, framework, folder) for framework in ("torch", "paddle", "keras")))
    return folder


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_explained(recorded, name):
    mistake = MISTAKES[name]
    traces = [Trace(recorded / "torch" / name), Trace(recorded / mistake.port / name)]
    mapping = propose(traces)
    mapping = replace(mapping, rows=[replace(row, use=True) for row in mapping.rows])
    parts, _ = chosen(mapping.mapped(traces), WHOLE)
    verdict = compare_pair(parts)
    said = "; ".join(each.sentence for each in verdict.explanations)
    assert verdict.mismatches
    assert bool(said) == bool(mistake.says), said
    for part in mistake.says:
        assert part in said


A = np.random.default_rng(1).normal(size=(6, 8))
MADE = {
    "{b} is 1/3 of {a}": A / 3,
    "{b} is minus {a}": -A,
    "{b} is 1/1024 of {a}": A / 1024,
    "{b} is 65536 times {a}": A * 65536,
    "{b} is 1000 times {a}": A * 1000,
    "{b} is 1.2346 times {a}": A * 1.23456,
    "{b} is 1.0000034 times {a}": A * 1.0000034,
    "{b} is {a} transposed": A.T,
    "{b} is {a} in another shape, in the same order": A.reshape(3, 16),
    "{b} is {a} plus 0.5": A + 0.5,
    "{b} is {a} with columns 2 and 5 exchanged": A[:, [0, 1, 5, 3, 4, 2, 6, 7]],
    "{b} is {a} with its 3 blocks of rows in the order 2, 0, 1": A[[4, 5, 0, 1, 2, 3]],
    "{b} is {a} rounded to float32": A.astype(np.float32).astype(np.float64),
    "{b} is {a} rounded to float16": A.astype(np.float16).astype(np.float64),
    "{b} and {a} differ in row 4 of 6 alone, where {b} is 2 times {a}": np.where(
        np.arange(6)[:, None] == 4, 2 * A, A
    ),
    "": np.random.default_rng(2).normal(size=(6, 8)),
}


def test_an_epsilon_is_told_where_it_changes_but_the_last_digits_of_float32():
    x = np.random.default_rng(1).normal(0, 1.2, (16, 12, 32)).astype(np.float32)
    of = {e: x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(e)) for e in (1e-5, 1e-3)}
    (says,) = explanations(of[1e-3], of[1e-5])
    assert says.endswith("as of a normalisation whose epsilon is some 100 times that of {a}")


@pytest.mark.parametrize("says", MADE)
def test_how_a_tensor_is_made_of_another(says):
    assert list(explanations(MADE[says], A)) == ([says] if says else [])


def test_a_narrower_type_is_told_where_its_inputs_were_narrower_too():
    a, b = (np.float32(factor) * A.astype(np.float32) for factor in (1, 1.03))
    narrow = (b.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert list(explanations(narrow, a)) == [
        "{b} holds numbers of bfloat16 alone, {a} does not"
    ]
    assert list(explanations(a, narrow)) == [
        "{a} holds numbers of bfloat16 alone, {b} does not"
    ]
    assert list(explanations(b + np.float32(0.1) * b**2, a)) == []


@pytest.mark.parametrize("step", [0, 1])
def test_a_weight_that_stands_still_without_a_gradient_is_named(tmp_path, step):
    for side in ("ours", "theirs"):
        with Recorder(
            tmp_path / side, framework=side, dtype="float64", same_tensors=False
        ) as r:
            weights = {"weight/w": A, "weight/v": A}
            for number in range(3):
                before = {f"initial/{n[7:]}": each for n, each in weights.items()}
                if side == "ours" or number != step:
                    weights = {name: each + 0.1 for name, each in weights.items()}
                r.step(number, weights | (before if number == 0 else {}))
    first = _said(tmp_path)
    assert f"why: w and 1 more do not move in step {step} of theirs" in first


def test_the_values_of_a_single_number_are_shown(tmp_path):
    for loss, shown in (
        (2.5, "1.25 in ours, 2.5 in theirs"),
        (1.25 + 2**-30, "1.25 in ours, 1.2500000009"),
    ):
        for side, value in (("ours", 1.25), ("theirs", loss)):
            with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
                recorder.step(0, {"loss/mean": np.float64(value)})
        assert f"mismatch in loss/mean, step 0: {shown}" in _said(tmp_path)


def test_a_single_number_is_no_multiple_unless_a_simple_one():
    one = np.array(1.37)
    assert list(explanations(4 * one, one)) == ["{b} is 4 times {a}"]
    assert list(explanations(4.001 * one, one)) == []
    version = np.array(4)
    assert list(explanations(version // 2, version)) == []


def test_what_is_small_is_no_multiple_of_what_is_large():
    a, b = np.random.default_rng(7).normal(size=(2, 5, 6))
    assert list(explanations(1e-6 * b, a)) == list(explanations(a, 1e-6 * b)) == []
    (says,) = explanations(1e-6 * a, a)
    assert says == "{b} is 1e-06 times {a}"


def _trained(folder, facts, epsilon=1e-8, steps=3, dtype="float64", held=()):
    """Record steps of Adam.

    Args:
      held: where beta2 is that of float32: in the "square", in its "correction".
    """
    draw, weight = np.random.default_rng(5), np.linspace(-1, 1, 12)
    mean = square = np.zeros(12)
    kept, powers = (
        float(np.float32(0.999)) if each in held else 0.999 for each in ("square", "correction")
    )
    given = {"framework": folder.name, "dtype": dtype, "facts": facts}
    with Recorder(folder, **given, same_tensors=False) as recorder:
        for step in range(steps):
            gradient = draw.normal(size=12)
            mean = 0.9 * mean + 0.1 * gradient
            square = kept * square + (1 - kept) * gradient**2
            root = np.sqrt(square / (1 - powers ** (step + 1)))
            found = {"initial/w": weight} if step == 0 else {}
            weight = weight - 0.01 * mean / (1 - 0.9 ** (step + 1)) / (root + epsilon)
            found |= {"gradient/w": gradient, "weight/w": weight, "optimizer/w/square": square}
            recorder.step(step, {name: each.astype(dtype) for name, each in found.items()})


def _first_lines(folder, facts):
    _trained(folder / "ours", facts)
    _trained(folder / "theirs", facts, epsilon=1e-3)
    return _said(folder)


def _said(folder):
    values = compared([Trace(folder / side) for side in ("ours", "theirs")], "")
    return report_text(values).split("\n\n")[0]


def _adam(**settings):
    return {"optimizer": {"kind": "Adam", "settings": {"lr": 0.01} | settings}}


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (("square", "correction"), "reproduces the second moment in 3 steps"),  # as Paddle
        (("correction",), "reproduces the size of the first step"),  # as Keras
    ],
)
def test_a_constant_held_in_float32_is_no_rounding(tmp_path, held, told):
    for side, of in (("ours", ()), ("theirs", held)):
        _trained(tmp_path / side, _adam(betas=[0.9, 0.999]), dtype="float32", held=of)
    strict = dict.fromkeys(("optimizer", "weight"), Tolerance(1e-7, 1e-7, reason="none"))
    traces = [Trace(tmp_path / side) for side in ("ours", "theirs")]
    (found,) = compare_pair(traces, strict).explanations
    assert found.sentence == (
        "1 - beta2 is 0.001 in ours, 0.000999987 in theirs; confirmed: 1 - beta2 held in "
        f"float32 in theirs {told} of both"
    )


def test_a_confirmed_rule_says_what_it_was_tried_on(tmp_path):
    first = " ".join(_first_lines(tmp_path, _adam(betas=[0.9, 0.999])).split())
    assert "epsilon is 1e-08 in ours, 0.001 in theirs; confirmed: that reproduces" in first
    assert first.endswith("the first 3 steps of both, in up to 256 elements of each parameter")


def _three(folder, *, steps=6, size=12, mean=0, dtype="float64", settings=(), **how):
    """Record steps of AdamW of three parameters.

    Args:
      mean: of the first weights.
      settings: of the optimiser, as the header states them.
      how: as `_adamw`'s; a tuple has that of each parameter.
    """
    draw = np.random.default_rng(6)
    given = {name: each if type(each) is tuple else (each,) * 3 for name, each in how.items()}
    facts = {"optimizer": {"kind": "AdamW", "settings": dict(settings)}}
    weights = {name: draw.normal(mean, size=size) for name in ("kernel", "bias", "scale")}
    weights = {name: each.astype(dtype) for name, each in weights.items()}
    slots = {name: [0.0, 0.0] for name in weights}
    with Recorder(
        folder, framework=folder.name, dtype=dtype, facts=facts, same_tensors=False
    ) as recorder:
        for step in range(steps):
            found = {f"initial/{n}": x for n, x in weights.items()} if step == 0 else {}
            for place, name in enumerate(weights):
                gradient = draw.normal(size=size).astype(dtype)
                own = {key: each[place] for key, each in given.items()}
                weights[name] = _adamw(step, gradient, weights[name], slots[name], **own)
                found |= {f"gradient/{name}": gradient, f"weight/{name}": weights[name]}
            recorder.step(step, found)


def _adamw(
    step, gradient, weight, slots, *, rate=0.01, beta2=0.999, decay=0.0, epsilon=1e-8, **how
):
    """Return a weight after a step.

    Args:
      rate: or what returns that of a step.
      how: `corrected`: whether the bias is.
    """
    rate = rate(step) if callable(rate) else rate
    first, second = 0.9 ** (step + 1), beta2 ** (step + 1)
    first, second = (first, second) if how.get("corrected", True) else (0.0, 0.0)
    slots[:] = (
        0.9 * slots[0] + 0.1 * gradient,
        beta2 * slots[1] + (1 - beta2) * np.square(gradient, dtype="float64"),
    )
    moved = slots[0] / (1 - first) / (np.sqrt(slots[1] / (1 - second)) + epsilon)
    return (weight - rate * (moved + decay * weight)).astype(gradient.dtype)


def _why(folder, ours, theirs, **both):
    _three(folder / "ours", **both, **ours)
    _three(folder / "theirs", **both, **theirs)
    return " ".join(_said(folder).split()).partition(" why: ")[2]


LESS = "in bias and 1 more of 3 parameters, "
THESE = "in up to 256 elements of each of these"
EACH = "in up to 256 elements of each parameter"


@pytest.mark.parametrize(
    ("ours", "theirs", "told", "tried"),
    [
        (
            {},
            {"rate": (0.01, 0.02, 0.02)},
            "the rate of bias and 1 more is 0.01 in ours, 0.02 in theirs, 2 times that",
            EACH,
        ),
        (
            {},
            {"rate": (0.04, 0.02, 0.02)},
            "the rate of kernel is 0.01 in ours, 0.04 in theirs, 4 times that; the rate of "
            "bias and 1 more is 0.01 in ours, 0.02 in theirs, 2 times that",
            EACH,
        ),
        (
            {},
            {"epsilon": 1e-5, "rate": (0.01, 0.01, 0.02)},
            "epsilon is 1e-08 in ours, 1e-05 in theirs; scale moves 2 times as fast as the "
            "rest in theirs",
            EACH,
        ),
        (
            {"decay": (1, 0, 0)},
            {"decay": 1},
            LESS + "decay is none in ours, 1 of the weight itself in theirs",
            THESE,
        ),
        (
            {},
            {"beta2": (0.999, 0.99, 0.99)},
            LESS + "beta2 is 0.999 in ours, 0.99 in theirs",
            THESE,
        ),
    ],
)
def test_what_holds_of_some_parameters_is_not_claimed_of_others(
    tmp_path, ours, theirs, told, tried
):
    said = _why(tmp_path, ours, theirs, settings={"lr": 0.01})
    assert said == f"{told}; confirmed: that reproduces the first 6 steps of both, {tried}"


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (1e-6, 0.0, ""),  # some ulps of the weights
        (1e-6, 1.3e-6, ""),
        (1e-4, 2e-4, "the rate is 0.0001 in ours, 0.0002 in theirs, 2 times that"),
    ],
)
def test_nothing_is_confirmed_that_is_as_small_as_rounding(tmp_path, ours, theirs, told):
    for side, rate in (("ours", ours), ("theirs", theirs)):
        given = {"rate": rate, "settings": {"lr": rate}}
        _three(tmp_path / side, mean=1, dtype="float32", **given)
    strict = {"weight": Tolerance(1e-8, 1e-8, reason="none")}
    traces = [Trace(tmp_path / side) for side in ("ours", "theirs")]
    said = [each.sentence for each in compare_pair(traces, strict).explanations]
    confirmed = [each.partition("; confirmed")[0] for each in said if "confirmed" in each]
    assert confirmed == ([told] if told else [])


def _cosine(step):
    return 0.005 * (1 + np.cos(np.pi * step / 37))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("times", [1, 2])
def test_rates_of_a_schedule_hide_no_missing_bias_correction(tmp_path, dtype, times):
    theirs = {"rate": lambda step: times * _cosine(step), "corrected": False}
    said = _why(tmp_path, {"rate": _cosine}, theirs, dtype=dtype)
    told = "the bias correction is right in ours, none in theirs"
    if times != 1:
        told += "; the rate in step 0 is 0.01 in ours, 0.02 in theirs"
    assert said.partition("; confirmed")[0] == told


@pytest.mark.parametrize("corrected", [True, False])
def test_other_rates_are_not_confirmed_where_a_bias_correction_does_as_well(
    tmp_path, corrected
):
    theirs = {"rate": lambda step: _cosine(2 * step + 1), "corrected": corrected}
    said = _why(tmp_path, {"rate": _cosine}, theirs, dtype="float32")
    assert said.startswith("the rate in step 0 is 0.01 in ours")
    assert said.endswith(
        "or the bias correction is another, which the first 6 steps do not tell apart from "
        "other rates"
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"optimizer": 5},
        *(_adam(betas=betas) for betas in ("x", [], 5, [None], ["a", "b"], [0.9])),
        *(_adam(betas=betas) for betas in ([0.9, 2.0], [1.0, 0.999], [0.9, 1 - 1e-12])),
        _adam(lr=10**400),
        _adam(lr="fast", weight_decay=[1], eps=None),
        {"optimizer": {"kind": ["Adam"], "settings": {"eps": 1e300}}},
    ],
)
def test_facts_of_any_kind_are_no_error(tmp_path, facts):
    assert _first_lines(tmp_path, facts).startswith("mismatch in weight/w")


@pytest.mark.parametrize("scale", [1e-300, 1e200, 1e307])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_numbers_of_any_size_are_no_error(tmp_path, kind, scale):
    facts = {"optimizer": {"kind": kind, "settings": {"lr": 0.1}}}
    for side, rate in (("ours", 0.1), ("theirs", 0.2)):
        draw, weight = np.random.default_rng(5), np.zeros(12)
        with Recorder(tmp_path / side, framework=side, dtype="float64", facts=facts) as mine:
            for step in range(3):
                gradient, before = scale * draw.normal(size=12), {"initial/w": weight}
                weight = weight - rate * gradient
                mine.step(step, {"gradient/w": gradient, "weight/w": weight} | before)
    assert _said(tmp_path).startswith("mismatch in weight/w, step 0")


def test_a_move_beyond_the_largest_number_is_no_error(tmp_path):
    facts = {"optimizer": {"kind": "SGD", "settings": {"momentum": 0.9}}}
    for side, last in (("ours", 1.5e308), ("theirs", 1.4e308)):
        with Recorder(tmp_path / side, framework=side, dtype="float64", facts=facts) as mine:
            for step in range(3):
                before = {"initial/w": np.full(4, -1.5e308)}
                weight = np.full(4, last if step % 2 == 0 else -1.5e308)
                mine.step(step, {"gradient/w": np.arange(4.0), "weight/w": weight} | before)
    assert _said(tmp_path).startswith("mismatch in weight/w, step 0")


def test_a_kink_is_called_so(tmp_path):
    """An input of a ReLU is zero but for its last bit, on one side alone."""
    hidden = np.abs(np.random.default_rng(7).normal(size=(8, 8)))
    hidden[:, 4:], hidden[3, 2] = 0, 1e-17
    for side in ("ours", "theirs"):
        gradient = (hidden > 0) * 0.3
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, {"forward/act": hidden, "gradient/w": gradient.sum(0)})
        hidden = np.where(hidden == 1e-17, 0, hidden)
    first = " ".join(_said(tmp_path).split())
    assert "why: a kink: 1 of 64 elements of forward/act are zero on one side" in first


@pytest.mark.parametrize("unseen", [False, True])
def test_gradients_that_one_side_alone_changes_are_the_cause(tmp_path, unseen):
    """Clipping may well be on one side alone, where it was forgotten on the other.

    It is none where both kept the same of what they were given.
    """
    gradient = np.random.default_rng(3).normal(size=12)
    for side, share in (("ours", 1), ("theirs", 0.25)):
        kept = 0.1 * (0.25 if unseen else share) * gradient
        tensors = {"gradient/w": gradient, "optimizer/w/m": kept, "weight/w": -share * kept}
        if side == "theirs":
            tensors["clipped_gradient/w"] = share * gradient
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, tensors)
    first = " ".join(_said(tmp_path).split())
    assert first.startswith(f"mismatch in {'weight/w' if unseen else 'optimizer/w/m'}, step 0")
    told = "why: theirs changes its gradients before the update, as by clipping them; ours"
    assert (told in first) == (not unseen)


@pytest.mark.parametrize("mine", [0, 1])
@pytest.mark.parametrize("share", [0.25, 0.3])
def test_a_gradient_recorded_after_clipping_is_called_so(tmp_path, mine, share):
    """As by the watch of JAX and Keras, where a loop clips by hand."""
    gradients = np.random.default_rng(3).normal(size=(2, 12))
    for place, side in enumerate(("ours", "theirs")):
        found = dict(zip(("gradient/v", "gradient/w"), gradients, strict=True))
        if place == mine:
            found = {name: share * each for name, each in found.items()}
        else:
            found |= {f"clipped_{name}": 0.25 * each for name, each in found.items()}
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, found)
    one, other = (("ours", "theirs"), ("theirs", "ours"))[mine]
    told = f"why: the gradients of {one} are those of {other} after clipping: {one} recorded"
    assert (told in " ".join(_said(tmp_path).split())) == (share == 0.25)


@pytest.mark.parametrize("decay", [0, 0.1])
def test_a_weight_that_nothing_but_rounding_moved_is_called_so(tmp_path, decay):
    """As a bias before a batch normalisation that began at 0; unless it decays, too."""
    for side, own in (("ours", 3e-17), ("theirs", -2e-17)):
        start = 1.0 if decay else 0.0
        weight = start * (1 - decay * (side == "ours")) - 0.1 * own
        found = {"gradient/w": np.ones(3), "gradient/b": np.array([own])}
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, found | {"weight/b": np.array([weight])})
    first = " ".join(_said(tmp_path).split())
    assert first.startswith("mismatch in weight/b, step 0")
    assert ("why: gradient/b is no larger than rounding on both sides" in first) == (not decay)


@pytest.mark.parametrize("added", [1e-6, 1e-5])
@pytest.mark.parametrize("mine", [0, 1])
def test_what_pytorch_adds_to_the_norm_is_named(tmp_path, mine, added):
    found = {name: np.random.default_rng(3).normal(size=12) for name in ("v", "w")}
    norm = np.linalg.norm(list(found.values()))
    gradients = {f"gradient/{name}": each for name, each in found.items()}
    for place, side in enumerate(("ours", "theirs")):
        share = 1 / (norm + added) if place == mine else 1 / norm
        clipped = {f"clipped_{name}": each * share for name, each in gradients.items()}
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, gradients | clipped)
    one, other = (("ours", "theirs"), ("theirs", "ours"))[mine]
    told = (
        f"why: {one} clips by the norm + 1e-06, as PyTorch's clip_grad_norm_ does, {other} by"
    )
    assert (told in " ".join(_said(tmp_path).split())) == (added == 1e-6)


@pytest.mark.parametrize("rung", ["gradient", "optimizer"])
@pytest.mark.parametrize("size", [5e-16, 1e-13])
def test_a_gradient_that_is_nothing_but_rounding_is_called_so(tmp_path, rung, size):
    """As that of a bias that a batch normalisation takes out again."""
    for side, own in (("ours", size), ("theirs", -size / 2)):
        found = {"gradient/b": own, "optimizer/b/m": 0.1 * own}
        tensors = {n: np.array([x]) for n, x in found.items() if n.startswith(rung)}
        tensors |= {"gradient/b": np.array([size])} if rung == "optimizer" else {}
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, {"gradient/w": np.ones(3)} | tensors)
    first = " ".join(_said(tmp_path).split())
    told = f"why: gradient/b is no larger than rounding on both sides, {size:.0e} of the step's"
    assert first.startswith(f"mismatch in {rung}/b")
    assert (told in first) == (size == 5e-16)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_tensor_without_the_digits_of_its_precision_was_rounded(dtype):
    assert rounded(A.astype(dtype).astype("float64"), A) == dtype
    assert rounded(A * 1.01, A) == ""
    assert rounded(np.round(A), A) == ""


def test_a_difference_of_the_size_of_a_rounding_is_named_as_that():
    norm = np.array(1.2345678901)
    for share, named in ((1e-8, "float32"), (1e-4, ""), (1e-12, "")):
        assert rounded(norm * (1 + share), norm) == named


def _differ_at(shape, places, factor=1.5):
    """Return an array, and the same with some places multiplied."""
    a = np.random.default_rng(4).normal(size=shape)
    b = a.copy()
    b[places] *= factor
    return b, a


ROWS = Axis("row", "replica", {"0": range(3), "1": range(3, 5), "2": range(5, 7)})
GATES = Axis("column", "gate", {name: range(2 * k, 2 * k + 2) for k, name in enumerate("ifgo")})
WHERE = {
    "in rows 3 and 4 of 7 alone, those of replica 1": ((7, 6, 2), np.s_[3:5], [ROWS]),
    "in rows 3 to 6 of 7 alone, those of replicas 1 and 2": ((7, 6, 2), np.s_[3:], [ROWS]),
    "in 5 of 7 rows alone, those of replicas 0 and 2": ((7, 6), [0, 1, 2, 5, 6], [ROWS]),
    "in row 4 of 7 alone": ((7, 6), np.s_[4], [ROWS]),
    "in columns 4 and 5 of 8 alone, those of gate g": (
        (6, 8),
        np.s_[:, 4:6],
        [Axis("row"), GATES],
    ),
    "in columns 10 to 14 of 20 alone, the third of 4 equal parts": (
        (6, 20),
        np.s_[:, 10:15],
        [],
    ),
    "from time step 2 of 6 on": ((7, 6, 2), np.s_[:, 2:], [ROWS, Axis("time step")]),
}


@pytest.mark.parametrize("where", WHERE)
def test_the_part_that_differs_is_named(where):
    shape, places, axes = WHERE[where]
    told = "{b} and {a} differ " + where + ", where {b} is 1.5 times {a}"
    (says,) = explanations(*_differ_at(shape, places), axes)
    assert says == told
    (says,) = explanations(*_differ_at(shape, places, 2), axes, {"replicas": 2, "rows": 7})
    assert says == told.replace("1.5 times {a}", "2 times {a} (replicas)")


def test_the_part_that_has_all_scattered_elements_is_named():
    # as padded rows alone differ in the backward half of a bidirectional layer
    given = _differ_at((7, 6, 8), ([0, 0, 3, 3, 5], [4, 5, 3, 4, 5], slice(4, 8)))
    (says,) = explanations(*given, [ROWS, Axis("time step")])
    assert (
        says == "{b} and {a} differ in columns 4 to 7 of 8 alone, the second of 2 equal parts"
    )


def test_padding_does_not_hide_from_which_time_step_on_a_tensor_differs():
    b, a = _differ_at((7, 6, 2), np.s_[:, 2:])
    for row in range(5):
        a[row, row + 1 :] = b[row, row + 1 :] = 0
    (says,) = explanations(b, a, [ROWS, Axis("time step")])
    assert says == "{b} and {a} differ from time step 2 of 6 on, where {b} is 1.5 times {a}"


def test_a_factor_is_told_as_the_number_that_it_is():
    known = {"replicas": 2, "layers": 2, "keep": 0.7, "one": 1, "none": 0}
    assert meaning(0.5, known) == " (1 / replicas, 1 / layers)"
    assert meaning(1 / 0.7, known) == " (1 / keep)"
    assert meaning(1.0, known) == meaning(3.0, known) == ""


def test_ends_of_rows_are_told_by_their_lengths():
    lengths, last = np.array([2, 4, 3]), ([0, 1, 2], [1, 3, 2])
    padding, both = ([0, 0, 2], [2, 3, 3]), ([0, 0], [1, 2])
    for places, where in ((last, "rows' last tokens"), (padding, "padding")):
        told = ends_of_rows(*_differ_at((3, 4, 2), places), lengths)
        assert told == f"{{b}} and {{a}} differ in {where} alone"
    for places, of in ((both, lengths), (([0], [0]), lengths), (last, None)):
        assert ends_of_rows(*_differ_at((3, 4, 2), places), of) == ""
