"""The set-up: the lock, the Makefile, and what no file of the project may name."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
OF_HOROVOD = (ROOT / "requirements-horovod.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]
LOCKED_LISTS = [
    PROJECT["project"]["dependencies"],
    *(EXTRAS[name] for name in ("pictures", "train")),
    *(GROUPS[name] for name in ("dev", "docs")),
]
# All that the lock has to hold; an extra that asks for another one names this project.
DIRECT = [
    requirement
    for lines in LOCKED_LISTS
    for requirement in map(Requirement, lines)
    if requirement.name != PROJECT["project"]["name"]
]
PYTHONS = ["3.10", "3.11", "3.12"]
TARGETS = ["help", "setup", "test", "parity", "horovod", "lock", "wheel", "clean"]


def locked_entries(lock: str = LOCK) -> list[tuple[Requirement, list[str]]]:
    """Return each requirement of the lock with its options (the hashes)."""
    joined = re.sub(r"\\\n", " ", lock)
    lines = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    entries = []
    for line in lines:
        requirement, *options = re.split(r"\s+(?=--)", line.strip())
        entries.append((Requirement(requirement), [option.strip() for option in options]))
    return entries


def locked_version(name: str, python: str) -> Version | None:
    """Return the version that the lock gives to one Python on Linux, None if it has none.

    Args:
      python: "3.11.4", or "3.11" for the first release of that series.
    """
    environment = {
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python if python.count(".") > 1 else f"{python}.0",
        "sys_platform": "linux",
        "platform_python_implementation": "CPython",
    }
    found = [
        requirement
        for requirement, _ in locked_entries()
        if canonicalize_name(requirement.name) == canonicalize_name(name)
        and (requirement.marker is None or requirement.marker.evaluate(environment))
    ]
    assert len(found) <= 1, f"{name} is locked twice for Python {python}"
    return Version(next(iter(found[0].specifier)).version) if found else None


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
    for name in ["Makefile", "requirements.lock", "requirements-horovod.lock"]:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize("lock", [LOCK, OF_HOROVOD], ids=["usual", "horovod"])
def test_each_line_of_the_lock_pins_one_version_by_hash(lock):
    entries = locked_entries(lock)
    assert len(entries) > (len(DIRECT) if lock == LOCK else len(GROUPS["horovod"]))
    for requirement, options in entries:
        assert [s.operator for s in requirement.specifier] == ["=="], str(requirement)
        assert requirement.url is None, str(requirement)
        assert options, f"{requirement.name} has no hash"
        for option in options:
            assert re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option), (requirement, option)


@pytest.mark.parametrize("lock", [LOCK, OF_HOROVOD], ids=["usual", "horovod"])
def test_lock_holds_no_address(lock):
    assert "://" not in lock
    assert not re.search(r"^\s*(-|--)?(index|extra-index|find-links|trusted)", lock, re.M)


def test_the_lock_of_horovod_satisfies_its_group():
    locked = {canonicalize_name(each.name): each for each, _ in locked_entries(OF_HOROVOD)}
    for requirement in map(Requirement, GROUPS["horovod"]):
        version = next(iter(locked[canonicalize_name(requirement.name)].specifier)).version
        assert requirement.specifier.contains(version), f"{requirement}, locked {version}"


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_satisfies_direct_dependencies(python: str):
    for requirement in DIRECT:
        if requirement.marker and not requirement.marker.evaluate({"python_version": python}):
            continue
        version = locked_version(requirement.name, python)
        assert version is not None, f"{requirement.name} is not locked for Python {python}"
        assert requirement.specifier.contains(version), f"{requirement}, locked {version}"


def test_frameworks_are_pinned_exactly():
    pins = {requirement.name: str(requirement.specifier) for requirement in DIRECT}
    for requirement in map(Requirement, EXTRAS["gpu"]):
        assert str(requirement.specifier) == pins[requirement.name.removesuffix("-gpu")]


def test_environment_is_the_locked_one():
    for name in sorted({requirement.name for requirement, _ in locked_entries()}):
        wanted = locked_version(name, platform.python_version())
        if wanted is not None:
            installed = Version(importlib.metadata.version(name))
            assert installed == wanted, f"{name} {installed} is installed, {wanted} is locked"


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


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_commands_for_the_target(target: str, checkout: Path):
    done = run_make(checkout, "--dry-run", target)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Nothing to be done" not in done.stdout


def test_help_lists_the_commands():
    shown = run_make(ROOT).stdout
    assert [target for target in TARGETS if f"make {target} " not in shown] == ["help"]


def test_ci_runs_all_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "\nmake test" in text
    assert "make horovod-test" in text


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


def test_clean_removes_only_what_make_made(checkout: Path):
    for name in [".venv", ".venv-horovod", "out", "data"]:
        (checkout / name).mkdir()
        (checkout / name / "file").touch()
    assert run_make(checkout, "clean").returncode == 0
    left = sorted(path.name for path in checkout.iterdir())
    assert left == ["Makefile", "data", "requirements-horovod.lock", "requirements.lock"]
