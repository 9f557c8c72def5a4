"""Random valid runs, every one of which must match: a mismatch would be a false alarm.

random_runs.py and random_text.py draw a run, sweep.py trains and compares both sides, and
results.py keeps what was found and reports it.
"""
