"""The catalogue of faults, in the order of computation; ../patches.py describes its text."""

from pathlib import Path

from parity.twins.faults.patches import read_mistakes

SUBJECTS = (
    "batches",
    "weights",
    "cells",
    "states",
    "attention",
    "losses",
    "gradients",
    "clipping",
    "updates",
    "decoding",
    "evaluations",
    "answers",
    "checkpoints",
    "untraced",
    "micro_batches",
    "stages",
    "mirrored_variables",
    "averages",
    "processes",
    "process_updates",
    "servers",
    "workers",
)

CATALOGUE = tuple(
    fault
    for subject in SUBJECTS
    for fault in read_mistakes(Path(__file__).parent / f"{subject}.patch")
)
