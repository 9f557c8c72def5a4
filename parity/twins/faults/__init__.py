"""Planted faults: mistakes made on purpose, to show that the harness would find them.

fault.py says what a fault is, and `catalogue` holds them all, by the code that they change.
small_runs.py has the runs to plant them in, with the strategies whose mistakes are among them;
hunt.py plants each fault and runs the harness, and finding.py tells what was found.
hunt_record.py records which sources were last hunted in full.
"""
