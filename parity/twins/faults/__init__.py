"""Planted faults: mistakes made on purpose, to show that the harness would find them.

fault.py says what a fault is, and `catalogue` holds them all, by the code that they change.
patches.py reads their text. small_runs.py has the runs to plant them in, with the strategies
whose mistakes are among them; hunt.py plants each fault and runs the harness, and finding.py
tells what was found.
"""
