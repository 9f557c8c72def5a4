"""The set-up: the lock, the Makefile, and what no file of the project may name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
TRAIN = [Requirement(line) for line in EXTRAS["train"]]


def project_files() -> list[Path]:
    """Return the files that git tracks or would track, as they are in the checkout."""
    listed = subprocess.run(
        # The owner of a checkout in a container is often not its user: git wants to be told.
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def run_make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a folder as if no other make had started this test."""
    environment = {key: value for key, value in os.environ.items() if "MAKE" not in key}
    environment.pop("PYTHON", None)
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what set-up reads."""
    locks = [
        path.relative_to(ROOT) for path in (*ROOT.glob("*.lock"), *ROOT.glob("deploy/*.lock"))
    ]
    (tmp_path / "deploy").mkdir()
    for name in ["Makefile", *locks]:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def test_both_kinds_of_paddle_are_of_one_version():
    pins = {requirement.name: str(requirement.specifier) for requirement in TRAIN}
    for requirement in map(Requirement, EXTRAS["gpu"]):
        assert str(requirement.specifier) == pins[requirement.name.removesuffix("-gpu")]
        assert f"{requirement.name.removesuffix('-gpu')}{requirement.specifier}" in LOCK


@pytest.mark.parametrize(
    "pattern",
    [
        # Written so that this file does not contain what it looks for.
        pytest.param(r"py[p]i\.\w|pythonhost[e]d|/simpl[e]/", id="index"),
        pytest.param(
            r"(?<![\w.~$}-])/(?:root|home|Users|work|opt|mnt|tmp|srv)/[\w.-]", id="local-path"
        ),
    ],
)
def test_no_file_names_a_package_index_or_a_local_path(pattern: str):
    files = project_files()
    assert ROOT / "Makefile" in files
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if match := re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


def test_help_lists_targets_that_have_commands(checkout: Path):
    targets = re.findall(r"^make ([\w-]+)", run_make(ROOT).stdout, re.MULTILINE)
    assert {"setup", "test", "parity"} < {*targets}
    done = run_make(checkout, "--dry-run", *targets)
    assert done.returncode == 0, done.stderr


def test_unusable_python_is_one_line(checkout: Path):
    stub = checkout / "python3.10"
    stub.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    stub.chmod(0o755)
    done = run_make(checkout, "setup", f"PYTHON={stub}")
    own, from_make = done.stderr.splitlines()
    assert own.startswith(f"error: none of ({stub})")
    assert "3.10, 3.11 or 3.12" in own
    assert from_make.startswith("make: ***")
    assert not (checkout / ".venv").exists()


def test_a_missing_compiler_is_one_line(checkout: Path):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    stamp = checkout / ".venv" / "ready"
    stamp.touch()
    done = run_make(checkout, "horovod", "--old-file", str(stamp), "CXX=no-compiler")
    own, from_make = done.stderr.splitlines()
    assert own.startswith("error: no C++ compiler to build Horovod with: ")
    assert from_make.startswith("make: ***")
    assert not (checkout / ".venv-horovod").exists()


def test_setup_takes_neither_a_half_made_environment_nor_one_of_another_lock(checkout: Path):
    def up_to_date() -> bool:
        return run_make(checkout, "--question", "setup").returncode == 0

    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(sys.executable)
    assert not up_to_date()
    stamp = checkout / ".venv" / "ready"
    stamp.touch()
    lock_time = (checkout / "requirements.lock").stat().st_mtime
    os.utime(stamp, (lock_time + 1, lock_time + 1))
    assert up_to_date()
    os.utime(stamp, (lock_time - 1, lock_time - 1))
    assert not up_to_date()
