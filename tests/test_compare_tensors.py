"""Comparing two recorded steps: what counts as a difference, and what is said of it."""

import numpy as np
import pytest
from oracle_side import recorded_steps, small_spec

from parity.base.errors import NumericFailure, UsageError
from parity.compare.steps import compare_step
from parity.compare.tensors import Distance, Place, check_numbers, compare_tensor
from parity.trace.tolerances import EXACT, TABLE, Tolerance
from parity.twins.compare.preconditions import check_shapes
from parity.twins.compare.rounding_bounds import bounds_of
from parity.twins.trace.contents import tensor_names

SIDES = ("left", "right")


def compare(a, b, tolerance=EXACT, name="weight/x", step=3):
    return compare_tensor(np.asarray(a), np.asarray(b), SIDES, step, name, tolerance)


@pytest.mark.parametrize(("dtype", "rung"), [key for key in TABLE if TABLE[key] != EXACT])
def test_twice_what_is_allowed_is_flagged_and_half_is_not(dtype, rung):
    tolerance = TABLE[dtype, rung]
    a = np.random.default_rng(0).normal(size=(6, 7))
    for index in ((0, 0), (5, 6), (2, 3)):
        allowed = tolerance.allowed(a, a)[index]
        for sign in (1, -1):
            for share, flagged in ((0.5, False), (2.0, True)):
                b = a.copy()
                b[index] += sign * share * allowed
                distance, mismatch = compare(a, b, tolerance)
                np.testing.assert_allclose(distance.used, share, rtol=1e-3)
                np.testing.assert_allclose(distance.absolute, share * allowed, rtol=1e-3)
                assert (mismatch is not None) == flagged
                if flagged:
                    assert mismatch.place == Place(3, "weight/x", index)
                    assert mismatch.values == {"left": a[index], "right": b[index]}
                    assert (mismatch.count, mismatch.size) == (1, 42)
                    np.testing.assert_allclose(mismatch.allowed, allowed, rtol=1e-3)


def test_a_tensor_of_zeros_allows_nothing_but_zeros():
    _, mismatch = compare(np.zeros(3), [0.0, 1e-300, 0.0], Tolerance(1e-5, 1e-5))
    assert mismatch.place.index == (1,)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, np.nan], [1.0, np.nan]),
        ([1.0, np.inf], [1.0, np.inf]),
        ([1.0, -np.inf], [1.0, 2.0]),
        ([np.nan], [np.nan]),
    ],
)
def test_what_is_no_number_never_passes(a, b):
    for tolerance in (EXACT, Tolerance(1e-5, 1e-5)):
        with np.errstate(invalid="ignore"):
            _, mismatch = compare(a, b, tolerance)
        assert mismatch is not None
        assert mismatch.place.index == (len(a) - 1,)
        assert mismatch.count >= 1


@pytest.mark.parametrize("name", ["batch/mask", "decode/scores", "loss/perplexity"])
def test_equal_infinities_that_mean_something_are_equal_and_bound_no_other(name):
    masked = np.array([-np.inf, 1.0, np.inf])
    for b, wrong in (
        (masked, None),
        (np.array([-np.inf, 1.001, np.inf]), (1,)),
        (-masked, (0,)),
        (np.array([-np.inf, 1.0, 2.0]), (2,)),
        (np.array([np.nan, 1.0, np.inf]), (0,)),
    ):
        with np.errstate(invalid="ignore"):
            _, mismatch = compare_tensor(masked, b, SIDES, 3, name, Tolerance(1e-5, 1e-5))
        assert (mismatch and mismatch.place.index) == wrong
    check_numbers({name: masked}, "paddle-2", 3, [name])
    with pytest.raises(NumericFailure, match=f"nan in {name}"):
        check_numbers({name: np.array([np.inf, np.nan])}, "paddle-2", 3, [name])


def test_an_infinity_on_one_side_is_a_mismatch_whatever_was_seen_before():
    a, b = np.array([np.inf, 5.0]), np.array([4.0, 5.0])
    given = (SIDES, 3, "loss/perplexity", Tolerance(1e-5, 1e-5))
    distance, mismatch = compare_tensor(a, b, *given, known=0.9)
    assert mismatch.place.index == (0,)
    assert not distance.used <= 1
    values = distance.to_json()
    assert (values["worst_absolute"], values["worst_relative"], values["used"]) == (None,) * 3


def test_a_tolerance_that_is_a_share_of_the_step_alone_is_not_called_exact():
    assert str(Tolerance(0, 0, step=0.5)) == "0, 0.5 of the step"


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_float64_does_not_hold_are_told_apart(dtype):
    a = np.array([2**62, 7], dtype)
    _, mismatch = compare_tensor(a, a + np.array([1, 0], dtype), SIDES, 3, "batch/ids", EXACT)
    assert mismatch.values == {SIDES[0]: 2**62, SIDES[1]: 2**62 + 1}
    assert compare_tensor(a, a, SIDES, 3, "batch/ids", EXACT)[1] is None


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (3, 2)), ((6,), (2, 3)), ((1, 3), (3, 3)), ((), (1,))]
)
def test_shapes_are_not_made_to_fit(a, b):
    _, mismatch = compare(np.ones(a), np.ones(b), Tolerance(1, 1))
    assert mismatch.problem == f"shape {list(a)} in {SIDES[0]}, {list(b)} in {SIDES[1]}"


def test_the_worst_element_is_by_absolute_difference_the_mismatch_by_what_is_allowed():
    a = np.array([100.0, 0.001])
    b = np.array([100.1, 0.002])
    distance, mismatch = compare(a, b, Tolerance(1e-2, 0.0))
    assert distance.where.index == (0,)
    assert mismatch.place.index == (1,)


def test_the_first_tensor_that_differs_is_told_and_all_are_measured():
    names = ["forward/h", "loss/global", "weight/x", "weight/y"]
    a = {name: np.ones(3) for name in names}
    b = a | {"loss/global": np.full(3, 2.0), "weight/y": np.full(3, 1.5)}
    found = compare_step(a, b, SIDES, 7, names, bounds_of("float64"))
    assert found.first.place == Place(7, "loss/global", (0,))
    assert found.first.rung == "loss"
    assert [each.place.tensor for each in found.mismatches] == ["loss/global", "weight/y"]
    distances = {rung: distance.absolute for rung, distance in found.rungs.items()}
    assert distances == {"forward": 0.0, "loss": 1.0, "weight": 0.5}
    found = compare_step(a, b, SIDES, 7, names, None)
    assert (found.first, found.shares) == (None, {})
    assert found.rungs["loss"].absolute == 1.0


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_equal_integers_of_any_width_are_equal(dtype):
    a, b = {"batch/x": np.array([0, 1])}, {"batch/x": np.array([0, 1], dtype)}
    for other, equal in ((b, True), ({"batch/x": np.array([1, 1], dtype)}, False)):
        found = compare_step(a, other, SIDES, 0, a, bounds_of("float64"), types=True)
        assert (found.first is None) == equal


# what a side records, before it is computed with


@pytest.fixture(scope="module")
def recorded():
    spec = small_spec(batching="sentences")
    return spec, recorded_steps(spec, 1)[0], tensor_names(spec)


def test_every_tensor_is_missed_and_every_shape_is_checked(recorded):
    spec, tensors, names = recorded
    for name, array in tensors.items():
        if not name.startswith(("replicas/", "forward/logits")):
            fewer = {key: value for key, value in tensors.items() if key != name}
            with pytest.raises(UsageError, match=rf"p, step 0: .*missing: \['{name}'\]; extra"):
                check_shapes(spec, fewer, "p", 0, names)
        with pytest.raises(UsageError, match=r"p, step 0: "):
            check_shapes(spec, tensors | {name: array[None]}, "p", 0, names)
        if array.ndim:
            with pytest.raises(UsageError, match=r"p, step 0: "):
                check_shapes(spec, tensors | {name: array[:-1]}, "p", 0, names)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("batch/tokens", 7, "0 to 6"),
        ("batch/targets", -1, "0 to 6"),
        ("batch/lengths", 5, "0 to 4"),
        ("batch/sizes", 4, "the batch has 5 rows"),
    ],
)
def test_ids_lengths_and_sizes_out_of_range_are_named(recorded, name, value, allowed):
    spec, tensors, names = recorded
    array = tensors[name].copy()
    array.flat[0] = value
    with pytest.raises(UsageError, match=f"{name} .*{allowed}"):
        check_shapes(spec, tensors | {name: array}, "paddle-2", 4, names)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_told_with_its_place_and_replica(recorded, value):
    _, tensors, names = recorded  # five rows, of which replica 0 has three
    hidden, table = tensors["forward/lstm_1/hidden"].copy(), tensors["gradient/embed/table"]
    for row, replica in ((0, 0), (2, 0), (3, 1), (4, 1)):
        bad = hidden.copy()
        bad[row, 1, 2] = value
        spoiled = tensors | {
            "forward/lstm_1/hidden": bad,
            "gradient/embed/table": np.full_like(table, value),
        }
        with pytest.raises(NumericFailure) as caught:
            check_numbers(spoiled, "paddle-2", 4, names)
        said = f"paddle-2: {value} in forward/lstm_1/hidden[{row}, 1, 2], step 4"
        assert str(caught.value) == f"{said}, replica {replica}"
        assert caught.value.exit_status == 3
    with pytest.raises(NumericFailure, match=r"in gradient_norm\[\], step 4$"):
        check_numbers(tensors | {"gradient_norm": np.array(value)}, "paddle-2", 4, names)


def test_what_is_allowed_is_a_share_of_the_element_and_of_the_largest():
    allowed = Tolerance(0.1, 0.01).allowed(np.array([1.0, -2.0]), np.array([3.0, 10.0]))
    np.testing.assert_allclose(allowed, [0.1 * 3 + 0.01 * 10, 0.1 * 10 + 0.01 * 10])
    assert str(Tolerance(1e-5, 0.0)).startswith("1e-05")
    assert str(EXACT) == "exact"


def test_distances_keep_the_worst_and_where_it_was():
    first, second = Place(0, "weight/a", (1,)), Place(4, "weight/b", (0, 2))
    worst = Distance()
    worst.add(Distance(2.0, 0.1, first, 0.3))
    worst.add(Distance(1.0, 0.2, second, 0.1))
    worst.add(Distance(0.5, 0.01, first, None))
    assert worst.to_json() == {
        "worst_absolute": 2.0,
        "worst_relative": 0.2,
        "where": {"step": 4, "tensor": "weight/b", "index": [0, 2]},
        "used": 0.3,
    }
    assert Distance().to_json()["where"] is None
