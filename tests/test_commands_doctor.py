"""What `python -m parity doctor` says of an environment: this one, and made-up ones."""

import _ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_python

from parity.cli import doctor
from parity.twins.cli import doctor as laboratory

ROOT = Path(__file__).resolve().parent.parent


def test_this_environment_has_no_problem():
    done = run_python("-m", "parity", "doctor")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[-1] == "no problem found"
    assert "paddlepaddle 2.6.2" in lines
    assert "tensorflow 2.21.0" in lines


def environment(folder, **packages) -> dict[str, str]:
    """Make a folder of installed packages: name -> version."""
    for name, version in packages.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    return packages


GOOD = {
    "paddlepaddle": "2.6.2",
    "tensorflow": "2.21.0",
    "numpy": "2.4.0",
    "safetensors": "0.7.0",
    "click": "8.2.0",
    "jieba": "0.42.1",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"paddlepaddle": None}, ["paddlepaddle is missing. Fix: pip install paddlepaddle=="]),
        (
            {"paddlepaddle": "3.0.0"},
            ["paddlepaddle is 3.0.0; allowed: 2.6.2, the last release"],
        ),
        (
            {"paddlepaddle": None, "paddlepaddle-gpu": "2.6.2"},
            ["Paddle does not find libcublas.so, libcublasLt.so, libcudnn.so, libcufft.so, "],
        ),
        (
            {"paddlepaddle-gpu": "2.6.2"},
            ["paddlepaddle and paddlepaddle-gpu are both installed", "Paddle does not find"],
        ),
        (
            {"paddlepaddle": None, "paddlepaddle-gpu": "2.5.0"},
            ["paddlepaddle-gpu is 2.5.0; allowed: 2.6.2", "Paddle does not find"],
        ),
        ({"tensorflow": "2.15.0"}, ["tensorflow is 2.15.0; allowed: 2.21.0"]),
        ({"tensorflow": None}, ["tensorflow is missing. Fix: make setup"]),
        (
            {"click": None, "safetensors": None},
            ["safetensors is missing. Fix: make setup", "click is missing. Fix: make setup"],
        ),
    ],
)
def test_each_problem_is_a_line_with_its_fix(tmp_path, change, said):
    packages = {name: v for name, v in (GOOD | change).items() if v is not None}
    environment(tmp_path, **packages)
    code = (
        "import sys\n"
        "sys.path = [sys.argv[1]] + [p for p in sys.path if 'site-packages' not in p]\n"
        "from parity.cli import doctor\n"
        "print('\\n'.join(doctor.problems()))"
    )
    done = run_python("-c", code, tmp_path, check=True)
    lines = done.stdout.split("\n")[:-1] if done.stdout.strip() else []
    assert len(lines) == len(said)
    for line, start in zip(lines, said, strict=True):
        assert line.startswith(start)
        assert "Fix: " in line


def test_libraries_of_cuda_are_found_beside_paddle(tmp_path):
    """As `make gpu` links them; any library that loads stands for them here."""
    environment(tmp_path, **GOOD | {"paddlepaddle-gpu": "2.6.2"})
    libs = tmp_path / "paddle" / "libs"
    libs.mkdir(parents=True)
    (tmp_path / "paddle" / "__init__.py").touch()
    for name in laboratory._CUDA_OF_PADDLE:
        (libs / name).symlink_to(_ctypes.__file__)
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from parity.twins.cli import doctor\n"
        "print(doctor._missing_cuda(), *doctor.notes())"
    )
    run = (sys.executable, "-c", code, str(tmp_path))
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] GPU: ")


def test_the_status_tells_whether_there_is_a_problem(capsys):
    assert doctor.report() == 0
    assert "problem:" not in capsys.readouterr().out
    required = laboratory._OTHERS["jieba"]
    try:
        laboratory._OTHERS["jieba"] = ("0.0.1", "a test")
        assert doctor.report() == 2
    finally:
        laboratory._OTHERS["jieba"] = required
    assert "problem: jieba is " in capsys.readouterr().out


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/true"])
def test_an_interpreter_that_lacks_the_framework_is_a_problem(monkeypatch, python):
    monkeypatch.setenv("PARITY_PADDLE_PYTHON", python)
    monkeypatch.setenv("PARITY_TENSORFLOW_PYTHON", f"{Path(sys.executable).parent}/python3")
    (told,) = laboratory.problems()
    assert told.startswith(f"PARITY_PADDLE_PYTHON is {python!r}, which is no Python that finds")
