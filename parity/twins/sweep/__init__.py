"""Random valid runs, every one of which must match: a mismatch would be a false alarm.

random_runs.py draws a run, random_sweep.py trains and compares both sides, and results.py keeps
what was found and reports it; harmless.py plants rewrites that must raise no alarm, either.
"""
