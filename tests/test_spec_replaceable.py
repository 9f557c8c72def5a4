"""Functions that can be replaced for a while, and are called as they are otherwise."""

import pytest

from parity.twins.spec.replaceable import replaceable, replacing


@replaceable
def area(width, height=1):
    """Return the area of a rectangle."""
    return width * height


@replaceable
def volume(width, height, depth):
    return area(width, height) * depth


def other_area(width, height=1):
    return -width * height


def test_a_replacement_is_called_within_its_context_alone():
    assert area(2, 3) == 6
    with replacing({area: other_area}):
        assert area(2, height=3) == -6
        with replacing({}):
            assert area(2, 3) == 6
        assert area(2) == -2
    assert area(2, 3) == 6


def test_a_replaceable_function_calls_the_replacements_of_others():
    with replacing({area: other_area}):
        assert volume(2, 3, 4) == -24


def test_a_function_must_be_declared_replaceable():
    with (
        pytest.raises(ValueError, match="other_area is not declared"),
        replacing({other_area: area}),
    ):
        pass


def test_a_replacement_has_the_same_parameters():
    with (
        pytest.raises(ValueError, match=r"area\(width, height=1\) has a replacement with \(w"),
        replacing({area: volume}),
    ):
        pass
