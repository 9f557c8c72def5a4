"""Runs tests with mistakes planted in the code that they test; no file is changed.

As a script it reads jobs as JSON, from its standard input, and writes what became of the tests.
Each job runs in a fork of the process, which has loaded the libraries of the tests before.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import pytest

from parity.twins.launch.edited_source import Edit, EditedSource, edited_texts

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent


def failures(
    module: str, jobs: Sequence[tuple[Sequence[Edit], list[str]]]
) -> list[dict[str, bool]]:
    """Run tests of a module, each job with its edits planted.

    Args:
      module: the module of the tests.
      jobs: edits, and the names of the tests to run with them, without "test_".

    Returns:
      For each job, test that was run -> whether it failed, with any of its parameters.
    """
    settings = {
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        # a process with threads cannot be forked
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, __file__, module],
        input=json.dumps([[list(map(astuple, edits)), tests] for edits, tests in jobs]),
        cwd=ROOT,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


class _Outcomes:
    """A plugin of pytest that keeps which tests failed, and runs none that already did."""

    def __init__(self):
        self.failed: dict[str, bool] = {}

    def pytest_runtest_protocol(self, item):
        return self.failed.get(item.originalname.removeprefix("test_")) or None

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::test_")[-1].split("[")[0]
        self.failed[name] = self.failed.get(name, False) or report.failed


def _run(module: str, edits: list[list[str]], tests: list[str]) -> dict[str, bool]:
    """Plant edits in this process, run tests, and return which failed."""
    edited = edited_texts([Edit(*each) for each in edits], ROOT)
    texts = {str(ROOT / file): text for file, text in edited.items()}
    EditedSource(texts).install(["parity", "data", "oracle_side", module])
    outcomes = _Outcomes()
    options = ["--noconftest", "-c", os.devnull, f"--rootdir={ROOT}", "-p", "no:cacheprovider"]
    chosen = [f"{TESTS / module}.py::test_{test}" for test in tests]
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        pytest.main([*options, *chosen], plugins=[outcomes])
    return outcomes.failed


def _run_in_fork(module: str, edits: list[list[str]], tests: list[str]) -> dict[str, bool]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found = _run(module, edits, tests)
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else {}


def _main(module: str) -> None:
    importlib.import_module(module)  # with every library that it needs
    if module == "test_witness_pytorch":
        importlib.import_module("torch._dynamo")  # what an optimiser imports, for all forks
    print(json.dumps([_run_in_fork(module, *job) for job in json.load(sys.stdin)]))


if __name__ == "__main__":
    _main(sys.argv[1])
