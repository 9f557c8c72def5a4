"""The wheel, installed with its core dependencies alone and used outside any checkout."""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import assert_one_line
from oracle_side import header, recorded_steps, small_pairs_spec, write_trace
from packaging.requirements import Requirement
from test_setup import ROOT, project_files

import parity

PROJECT = "training-parity"
# What the core must do without: frameworks, what only training needs, the rest of the checkout.
ABSENT = ("paddle", "tensorflow", "keras", "torch", "matplotlib", "jieba", "psutil", "pooch")
CHECKOUT_ONLY = ("data", "paddle_impl", "tf_impl", "tests")

RECORD = """
import sys
import numpy as np
from parity import Recorder
folder, wrong = sys.argv[1], float(sys.argv[2])
with Recorder(folder, framework=folder, dtype="float64") as recorder:
    for step in range(3):
        weight = np.linspace(0, 1, 12).reshape(3, 4) + step
        weight[1, 2] += wrong * (step == 2)
        recorder.step(step, {"loss/mean": np.float64(1 / (step + 1)), "weight/a": weight})
"""


class Installed:
    """An environment that holds the wheel and its core dependencies.

    Attributes:
      site: the folder of installed packages.
    """

    def __init__(self, folder: Path, wheel: Path):
        self._bin = folder / "env" / "bin"
        uv = [sys.executable, "-m", "uv", "--offline", "--no-cache", "--quiet"]
        python = self._bin / "python"
        called(*uv, "venv", f"--python={sys.executable}", folder / "env")
        called(*uv, "pip", "install", "--no-deps", f"--python={python}", wheel)
        (self.site,) = (folder / "env" / "lib").glob("python*/site-packages")
        self._link_core()

    def _link_core(self) -> None:
        """Link what the wheel requires, with all that requires, from this environment."""
        (info,) = self.site.glob("*.dist-info")
        wanted, seen = [importlib.metadata.Distribution.at(info)], set()
        while wanted:
            for line in wanted.pop().requires or ():
                requirement = Requirement(line)
                marker = requirement.marker
                if requirement.name in seen or (marker and not marker.evaluate({"extra": ""})):
                    continue
                seen.add(requirement.name)
                wanted.append(importlib.metadata.distribution(requirement.name))
                self._link(wanted[-1])

    def _link(self, distribution: importlib.metadata.Distribution) -> None:
        assert distribution.files, distribution.name
        tops = {Path(file).parts[0] for file in distribution.files} - {"..", "__pycache__"}
        for top in tops:
            (self.site / top).symlink_to(distribution.locate_file(top))

    def run(self, program: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess:
        """Run a program of the environment, with its output as text."""
        return subprocess.run(
            [self._bin / program, *map(str, arguments)],
            cwd=cwd,
            env={"PATH": os.environ["PATH"], "HOME": str(cwd)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def python(self, code: str, *arguments: object, cwd: Path) -> str:
        """Run Python code, and return what it printed."""
        done = self.run("python", "-c", code, *arguments, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout


def called(*command: object, **options) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel of a copy of the project, without a network."""
    folder = tmp_path_factory.mktemp("build")
    for path in project_files():
        copy = folder / "source" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    called(*build, "--outdir", folder / "dist", cwd=folder / "source")
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Installed:
    """Install the wheel into an environment of its own."""
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def recorded(installed, tmp_path_factory):
    """Record two equal trainings, and a third that is wrong in one element of its last step."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, wrong in (("a", 0), ("b", 0), ("wrong", 1e-3)):
        installed.python(RECORD, name, wrong, cwd=folder)
    return folder


def test_it_holds_parity_alone_and_all_of_it(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")]
    held = {name for name in names if ".dist-info/" not in name}
    inside = (path.relative_to(ROOT).as_posix() for path in project_files())
    library = {name for name in inside if re.match("parity/(?!twins/)", name)}
    assert held == library
    # little more than is there
    assert (
        sum(zipfile.ZipFile(wheel).read(n).count(b"\n") for n in held if n[-3:] == ".py")
        <= 17_445
    )
    assert "parity/py.typed" in held


def test_it_has_one_version(wheel, installed, tmp_path):
    assert wheel.name == f"{PROJECT.replace('-', '_')}-{parity.__version__}-py3-none-any.whl"
    said = installed.run("parity", "--version", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, f"parity, version {parity.__version__}\n")
    module = installed.run("python", "-m", "parity", "--version", cwd=tmp_path)
    assert module.stdout == said.stdout


def test_pytest_finds_its_plugin(installed):
    (info,) = installed.site.glob(f"{PROJECT.replace('-', '_')}-*.dist-info")
    (plugin,) = importlib.metadata.Distribution.at(info).entry_points.select(group="pytest11")
    assert (plugin.name, plugin.value) == ("parity", "parity.pytest_plugin")
    assert (installed.site / "parity" / "pytest_plugin.py").is_file()


def test_neither_frameworks_nor_the_checkout_can_be_imported(installed, tmp_path):
    code = (
        "import importlib.util, sys\n"
        "print(*[each for each in sys.argv[1:] if importlib.util.find_spec(each)])"
    )
    assert installed.python(code, "numpy", cwd=tmp_path) == "numpy\n"
    assert installed.python(code, *ABSENT, *CHECKOUT_ONLY, cwd=tmp_path) == "\n"


@pytest.mark.parametrize(("other", "status"), [("b", 0), ("wrong", 1)])
def test_recorded_pairs_are_compared_and_shown(installed, recorded, other, status):
    verdict = ("match", "mismatch")[status]
    compared = installed.run("parity", "compare", "a", other, cwd=recorded)
    assert compared.returncode == status, compared.stderr
    assert compared.stdout.splitlines()[-1] == f"verdict: {verdict}"
    arguments = ("report", "a", other, "--html=page.html")
    shown = installed.run("parity", *arguments, cwd=recorded)
    assert shown.stdout == f"page: page.html\nverdict: {verdict}\n", shown.stderr
    page = (recorded / "page.html").read_text(encoding="utf-8")
    assert re.search(f"id=.verdict.>{verdict}<", page)
    assert f"parity {' '.join(arguments)}" in page


def test_recorded_pairs_are_asserted_to_match(installed, recorded):
    code = "import sys, parity; parity.assert_match('a', sys.argv[1], html='page.html')"
    assert installed.python(code, "b", cwd=recorded) == ""
    assert "</html>" in (recorded / "page.html").read_text(encoding="utf-8")
    failed = installed.run("python", "-c", code, "wrong", cwd=recorded)
    assert failed.returncode == 1
    assert "AssertionError" in failed.stderr
    assert "weight/a, step 2" in failed.stderr


def test_a_trace_of_a_checkout_asks_for_its_oracle_in_one_line(installed, tmp_path):
    spec = small_pairs_spec()
    for framework in ("paddle", "tensorflow"):
        write_trace(tmp_path / framework, header(spec, framework), recorded_steps(spec, 1))
    done = installed.run("parity", "compare", "paddle", "tensorflow", cwd=tmp_path)
    line = assert_one_line(done.returncode, done.stderr)
    assert "is of a train.py, whose oracle only a checkout of parity has" in line


def test_help_lists_what_works_there(installed, tmp_path):
    shown = installed.run("parity", "--help", cwd=tmp_path).stdout
    assert "Paddle" not in shown
    commands = ["compare", "report", "align", "weights", "bounds", "localise", "doctor"]
    assert re.findall(r"^  (\w+)  ", shown, re.MULTILINE) == commands


@pytest.mark.parametrize("command", ["run", "losses"])
def test_a_command_of_the_laboratory_asks_for_the_checkout(installed, tmp_path, command):
    done = installed.run("parity", command, cwd=tmp_path)
    line = assert_one_line(done.returncode, done.stderr)
    assert line.startswith(f"error: parity has no command {command!r} here")
    assert "make setup" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_checkout_without_frameworks_asks_for_the_extra(installed, tmp_path, command):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from parity.__main__ import main; sys.exit(main())"
    )
    done = installed.run("python", "-c", code, command, cwd=tmp_path)
    line = assert_one_line(done.returncode, done.stderr)
    assert line.startswith(f"error: parity {command} needs paddle, which is not installed")
    assert "the extra `train`" in line


def test_what_needs_no_training_runs(installed, tmp_path):
    doctor = installed.run("parity", "doctor", cwd=tmp_path)
    assert doctor.returncode == 0, doctor.stdout
    assert "no checkout: " in doctor.stdout
    assert doctor.stdout.splitlines()[-1] == "no problem found"
