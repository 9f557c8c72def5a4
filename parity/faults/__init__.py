"""Planted faults: what shows that the harness would have found them.

`fault.py` says what a fault is and plants it in a copy of the project; `catalogue` lists them
by what they touch; `settings.py` has the small runs they are planted in; `hunt.py` runs each
and holds what the harness says against what was planted.
"""
