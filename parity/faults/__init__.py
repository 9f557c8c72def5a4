"""Planted faults: mistakes made on purpose, to show that the harness would find them.

fault.py says what a fault is, and `catalogue` holds them all, by the code that they change.
settings.py has the small runs to plant them in, hunt.py plants each and runs the harness, and
finding.py tells what was found. last_hunt.py records which sources were last hunted in full.
"""
