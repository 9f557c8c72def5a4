"""Traces of tensors that were not recorded whole, and numbers that NumPy has no type for."""

import json

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_one_line

from parity import Recorder, Rename, Tolerance, Trace, assert_match
from parity.align.kinds import Part
from parity.align.mapping import NameMapping, Row, write
from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.trace.reduced import places, reduce

SHAPE = (40, 60)
BOUND = Tolerance(0.0, 1e-6, reason="measured")


def tensors_of(change=None):
    draw = np.random.default_rng(1)
    found = {
        "batch/x": draw.integers(0, 9, SHAPE),
        "forward/a": draw.normal(size=SHAPE),
        "weight/a": draw.normal(size=SHAPE),
    }
    if change is not None:
        change(found)
    return found


def record(folder, change=None, tensors=None, **options):
    options = {
        "framework": folder.name,
        "dtype": "float64",
        "tolerances": {"forward": BOUND},
    } | options
    with Recorder(folder, **options) as recorder:
        recorder.step(0, tensors_of(change) if tensors is None else tensors)
    return folder


def judged(report):
    return report["by_statistics"]


def map_of(folder, name, first, second):
    """Write a map of one unit with one weight; return its path."""
    row = Row(("m", "n"), "Linear", True, "", {name: (first, second)})
    write(NameMapping(("a", "b"), [row], {}, ((), ())), folder / "map.yaml")
    return folder / "map.yaml"


def changed(name, place, by):
    def change(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][place] += by

    return change


@pytest.mark.parametrize("other", ["full", "sample", "statistics"])
@pytest.mark.parametrize("detail", ["sample", "statistics"])
def test_equal_tensors_are_judged_by_their_checksums(tmp_path, detail, other):
    a = record(tmp_path / "a", detail=detail)
    b = record(tmp_path / "b", detail=other)
    for pair in ((a, b), (b, a)):
        assert judged(assert_match(*pair)) == dict.fromkeys(tensors_of(), "equal checksums")
    assert not Trace(a).read(0), "nothing of them is whole"


def test_the_report_says_what_was_not_compared_element_by_element(tmp_path, capsys):
    a = record(tmp_path / "a", detail={"forward/*": "statistics"})
    b = record(tmp_path / "b", changed("forward/a", (3, 4), 1e-8))
    assert main(parity, ["compare", str(a), str(b)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "verdict: match, with 1 tensor judged by statistics" in text
    assert "Judged by statistics, not element by element: 'forward/a'." in text
    assert "float64 forward - - " in text, "no distance of elements is known"


@pytest.mark.parametrize(
    ("name", "by", "says"),
    [
        ("forward/a", 9.0, "judged by statistics: max"),
        ("batch/x", 1, "the checksums differ, and they must be equal to the bit"),
    ],
)
@pytest.mark.parametrize("other", ["full", "statistics"])
def test_a_mismatch_of_statistics_is_one(tmp_path, name, by, says, other):
    a = record(tmp_path / "a", detail="statistics")
    b = record(tmp_path / "b", changed(name, (3, 4), by), detail=other)
    with pytest.raises(AssertionError) as error:
        assert_match(a, b)
    assert f"mismatch in {name}, step 0: " in str(error.value)
    assert says in " ".join(str(error.value).split())


def test_statistics_that_are_within_the_bounds_wherever_the_elements_are(tmp_path):
    """The norm of 2,400 elements that are all too large by the bound is farther than it."""
    bound = Tolerance(0.0, 1e-3, reason="measured")
    tensors = {"forward/a": np.full(SHAPE, 1.0)}
    more = {"forward/a": tensors["forward/a"] + 0.999e-3}
    values = {"tolerances": {"forward": bound}, "detail": "statistics"}
    a = record(tmp_path / "a", tensors=tensors, **values)
    b = record(tmp_path / "b", tensors=more, **values)
    assert judged(assert_match(a, b)) == {"forward/a": "statistics"}


def swapped(tensors):
    """Exchange elements: no statistic moves."""
    forward = tensors["forward/a"]
    tensors["forward/a"] = forward[::-1, ::-1].copy()


@pytest.mark.parametrize("other", ["full", "sample"])
def test_a_sample_sees_what_statistics_do_not(tmp_path, other):
    a = record(tmp_path / "a", detail="statistics")
    b = record(tmp_path / "b", swapped, detail=other)
    assert judged(assert_match(a, b))["forward/a"] == "statistics"
    a = record(tmp_path / "a", detail="sample")
    with pytest.raises(AssertionError, match="judged by a sample of 1"):
        assert_match(a, b)


@pytest.mark.parametrize("shape", [(40, 60), (3, 7, 1000), (10**12, 4), (5,), ()])
def test_a_sample_takes_the_same_indices_of_every_axis_of_one_size(shape):
    found = places(shape)
    assert 1 <= np.prod([len(each) for each in found]) <= 1024
    for size, each in zip(shape, found, strict=True):
        assert np.all(np.diff(each) > 0)
        assert 0 <= each[0] <= each[-1] < size
    for each, other in zip(found, places(shape[::-1])[::-1], strict=True):
        np.testing.assert_array_equal(each, other)


@pytest.mark.parametrize(
    ("details", "layout", "by"),
    [
        (("sample", "sample"), ["transpose"], "statistics and a sample of elements"),
        (("statistics", "full"), ["transpose"], "equal checksums"),
        (("full", "sample"), ["transpose"], "equal checksums"),
        (("sample", "sample"), [{"blocks": [0, [1, 0]]}, "transpose"], "statistics"),
        (("full", "sample"), [{"blocks": [0, [1, 0]]}, "transpose"], "equal checksums"),
    ],
)
def test_layouts_of_a_map_are_applied_to_what_was_reduced(tmp_path, details, layout, by):
    """A whole tensor is brought into the layout in which the other one was reduced."""
    whole = tensors_of()["weight/a"]
    shared = Rename("a", *layout).layout.apply([whole])
    mapping = map_of(tmp_path, "a", Part(("w",), tuple(layout)), Part(("a",)))
    a = record(tmp_path / "a", tensors={"weight/w": whole}, tolerances=None, detail=details[0])
    for wrong in (False, True):
        other = {"weight/a": shared + wrong * 1.0}
        b = record(tmp_path / "b", tensors=other, tolerances=None, detail=details[1])
        if wrong:
            with pytest.raises(AssertionError, match="mismatch in weight/a, step 0"):
                assert_match(a, b, mapping=mapping)
        else:
            assert judged(assert_match(a, b, mapping=mapping)) == {"weight/a": by}


@pytest.mark.parametrize(
    ("layout", "says"),
    [({"concatenate": 0}, ""), ("sum", "a sum of tensors that were not recorded whole")],
)
@pytest.mark.parametrize("other", ["full", "statistics"])
def test_several_tensors_that_a_map_makes_one(tmp_path, layout, says, other):
    q, k = tensors_of()["weight/a"], tensors_of()["forward/a"]
    shared = Rename("qk", layout).layout.apply([q, k])
    mapping = map_of(tmp_path, "qk", Part(("q", "k"), (layout,)), Part(("qk",)))
    values = {"tolerances": None}
    parts = {"weight/q": q, "weight/k": k}
    a = record(tmp_path / "a", tensors=parts, detail={"*/k": "statistics"}, **values)
    b = record(tmp_path / "b", tensors={"weight/qk": shared}, detail=other, **values)
    if says:
        with pytest.raises(AssertionError) as error:
            assert_match(a, b, mapping=mapping)
        assert says in " ".join(str(error.value).split())
    else:
        by = judged(assert_match(a, b, mapping=mapping))
        assert by == {"weight/qk": "equal checksums" if other == "full" else "statistics"}


def test_the_first_pattern_that_fits_counts(tmp_path):
    detail = {"forward/a": "full", "forward/*": "statistics", "weight/*": "sample"}
    trace = Trace(record(tmp_path / "a", detail=detail))
    assert list(trace.read(0)) == ["batch/x", "forward/a"]
    (line,) = trace.lines()
    assert list(line["reduced"]) == ["weight/a"]


@pytest.mark.parametrize(
    "detail",
    [
        "mean",
        {"forward": "statistics"},
        {"forward/*": "some"},
        {"foward/*": "statistics"},
        3,
    ],
)
def test_a_detail_that_is_none_is_refused(tmp_path, detail):
    with pytest.raises(UsageError, match=r"^detail (is|of) .*; allowed( beginnings)?: "):
        record(tmp_path / "a", detail=detail)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 200)])
def test_statistics_are_those_of_the_elements(dtype, shape):
    array = (np.random.default_rng(1).normal(size=shape) * 3).astype(dtype)
    found, wide = reduce(array, "sample"), array.astype(np.float64)
    assert (found.min, found.max) == (
        wide.min(initial=0) if not wide.size else wide.min(),
        wide.max() if wide.size else 0,
    )
    near = pytest.approx(wide.mean() if wide.size else 0.0, rel=1e-5, abs=1e-7)
    assert found.mean == near
    assert found.norm == pytest.approx(np.linalg.norm(wide.reshape(-1)), rel=1e-6)
    assert found.sample.size == min(array.size, found.sample.size) <= 1024


def test_what_is_not_finite_is_counted_and_fails(tmp_path):
    tensors = tensors_of()
    tensors["forward/a"][0] = np.nan
    tensors["forward/a"][1, :2] = np.inf
    a = record(tmp_path / "a", tensors=tensors, detail="statistics")
    (line,) = Trace(a).lines()
    found = line["reduced"]["forward/a"]
    assert (found["nan"], found["infinite"]) == (60, 2)
    assert found["max"] < 9
    with pytest.raises(AssertionError, match="60 NaN and 2 infinities in forward/a, step 0"):
        assert_match(a, record(tmp_path / "b", detail="statistics"))


def test_what_is_no_number_counts_where_it_means_something(tmp_path):
    """As among scores; elsewhere it fails in any case."""
    for scores, matches in (([-1.0, 0.0, -np.inf], True), ([-1.0, 0.0, 0.0], False)):
        folders = [
            record(
                tmp_path / side,
                tensors={"decode/scores": np.array(each)},
                tolerances=None,
                detail="statistics",
                versions={"of": side},
            )
            for side, each in (("a", [-1.0, 0.0, -np.inf]), ("b", scores))
        ]
        if matches:
            assert_match(*folders)
        else:
            with pytest.raises(AssertionError, match="number of infinities 1 against 0"):
                assert_match(*folders)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_whose_sum_overflows_have_a_mean(tmp_path, dtype):
    """As a mask of the smallest number that there is."""
    least = float(np.finfo(dtype).min)
    tensors = {"batch/mask": np.full((40, 50), least, dtype)}
    folder = record(tmp_path / "a", tensors=tensors, tolerances=None, detail="statistics")
    (line,) = Trace(folder).lines()
    found = line["reduced"]["batch/mask"]
    assert (found["min"], found["max"]) == (least, least)
    assert found["mean"] == pytest.approx(least)
    assert_match(folder, folder)


def test_a_tiny_and_a_huge_tensor_have_a_norm():
    for scale in (1e-30, 1e30):
        array = np.full(100, scale, np.float32)
        assert reduce(array).norm == pytest.approx(10 * scale, rel=1e-6)


def test_damaged_statistics_are_refused(tmp_path):
    a = record(tmp_path / "a", detail="sample")
    index = a / "steps.jsonl"
    text = index.read_text()
    for change in ({"shape": [2]}, {"min": "low"}, {"sample": "0"}, {"type": "|V3"}):
        line = json.loads(text)
        line["reduced"]["forward/a"] |= change
        index.write_text(json.dumps(line) + "\n")
        with pytest.raises(UsageError, match="'forward/a' is not what was recorded"):
            list(Trace(a).everything())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_numpy_has_no_type_for_is_recorded_exactly(tmp_path, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype))
    bits = np.arange(2 ** (8 * min(kind.itemsize, 1))).astype(f"u{kind.itemsize}")
    every = bits.view(kind)
    every = every[np.isfinite(every.astype(np.float32))]
    a = record(tmp_path / "a", tensors={"forward/a": every}, dtype="float32")
    found = Trace(a).read(0)["forward/a"]
    assert found.dtype == np.float32
    assert np.array_equal(found.astype(kind).view(bits.dtype), every.view(bits.dtype))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_are_compared_in_both_parts(tmp_path, dtype):
    real = "float32" if dtype == "complex64" else "float64"
    numbers = (np.arange(6) + 1j * np.arange(6)[::-1]).reshape(2, 3).astype(dtype)
    names = {"a": Rename("a", "transpose")}
    values = {"dtype": real, "tolerances": None}
    a = record(tmp_path / "a", tensors={"forward/a": numbers}, **values)
    b = record(tmp_path / "b", tensors={"forward/a": numbers.T}, names=names, **values)
    assert_match(a, b)
    wrong = numbers.T.copy()
    wrong[1, 0] += 0.5j
    b = record(tmp_path / "b", tensors={"forward/a": wrong}, names=names, **values)
    with pytest.raises(AssertionError, match=r"farthest beyond the bound at \[0, 1, 1\]"):
        assert_match(a, b)


def test_weights_are_carried_over_only_if_they_are_whole(tmp_path, capsys):
    mapping = map_of(tmp_path, "a", Part(("a",)), Part(("a",)))
    tensors = {"initial/a": np.ones(3)}
    a = record(tmp_path / "a", tensors=tensors, tolerances=None, detail="statistics")
    status = main(parity, ["weights", str(a), "--map", str(mapping), "-o", str(tmp_path / "w")])
    assert "the step lacks 'initial/a'" in assert_one_line(status, capsys.readouterr().err)
