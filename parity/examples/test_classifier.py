"""A port compared with its original in a test suite: python -m pytest parity/examples"""

import subprocess
import sys

import parity


def record(side, folder):
    """Train one side, in a process of its own, and return its trace."""
    module = f"parity.examples.classifier_{side}"
    subprocess.run([sys.executable, "-m", module, folder, "--dtype=float64"], check=True)
    return folder


def test_port_matches_original(tmp_path):
    original = record("paddle", tmp_path / "paddle")
    port = record("tensorflow", tmp_path / "tensorflow")
    parity.assert_match(original, port, html=tmp_path / "report.html")
