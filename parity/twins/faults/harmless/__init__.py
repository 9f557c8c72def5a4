"""Rewrites of one side's training code that change no result but in its rounding.

Each computes the same by another formula, or sums in another order, as another engineer or
another version of a framework might. None may raise an alarm, in either precision: a harness
that takes rounding for a mistake is of no use. They are planted like faults, in the same small
runs.
"""

from parity.twins.faults.harmless import layers, sums

HARMLESS = (*sums.REWRITES, *layers.REWRITES)
