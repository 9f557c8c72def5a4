"""Where people work: pytest's fixture, and the summary of a step of GitHub Actions."""

from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import assert_one_line, run_python
from test_setup import ROOT

from parity import Recorder

TESTS = """
def test_port(parity):
    report = parity.assert_match("a", "b")
    assert report["verdict"] == "match"

def test_wrong_port(parity):
    parity.assert_match("a", "b")
    parity.assert_match("a", "wrong")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record two equal trainings and a third, whose weight is another."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, weight in (("a", 1.0), ("b", 1.0), ("wrong", 2.0)):
        with Recorder(folder / name, framework=name, dtype="float64") as recorder:
            recorder.step(0, {"weight/a": np.full(3, weight)})
    return folder


def run(*command, cwd, **environment):
    return run_python(
        "-m",
        *command,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)} | environment,
    )


def test_the_fixture_keeps_pages_and_verdicts(recorded, tmp_path):
    (recorded / "test_port.py").write_text(TESTS)
    plugin = ("-p", "parity.pytest_plugin", "-p", "no:cacheprovider")
    files = (f"--parity-html={tmp_path / 'pages'}", f"--junitxml={tmp_path / 'junit.xml'}")
    done = run("pytest", *plugin, *files, "test_port.py", cwd=recorded)
    assert done.returncode == 1, done.stdout + done.stderr
    assert 'parity.assert_match("a", "wrong")' in done.stdout  # the test's own line
    assert "mismatch in weight/a, step 0" in done.stdout
    cases = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    kept = {
        case.get("name"): [each.get("value") for each in case.iter("property")]
        for case in cases
    }
    assert kept["test_port"] == ["match: a and b, 1 step, 1 tensor"]
    first, second = kept["test_wrong_port"]
    assert first == kept["test_port"][0]
    assert second.startswith("mismatch in weight/a, step 0")
    assert sorted(path.name for path in (tmp_path / "pages").iterdir()) == [
        "test_port.py-test_port.html",
        "test_port.py-test_wrong_port-2.html",
        "test_port.py-test_wrong_port.html",
    ]


def test_projects_that_do_not_use_it_load_nothing_for_it():
    code = "import sys, parity.pytest_plugin; print({'numpy', 'jinja2'} & {*sys.modules})"
    done = run_python("-c", code, check=True)
    assert done.stdout == "set()\n"


def test_a_step_s_summary_gets_the_report(recorded, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    set_ = {"GITHUB_STEP_SUMMARY": str(summary)}
    for other, status in (("b", 0), ("wrong", 1)):
        compare = ("parity", "compare", "a", other, "--github")
        done = run(*compare, cwd=recorded, **set_)
        assert done.returncode == status, done.stderr
    lines = summary.read_text().splitlines()
    assert lines[:2] == ["# before", "### match: a and b, 1 step, 1 tensor"]
    assert sum(line == "verdict: mismatch" for line in lines) == 1
    (wrong,) = (line for line in lines if line.startswith("### mismatch"))
    assert wrong.startswith("### mismatch in weight/a, step 0")
    nowhere = run(*compare, cwd=recorded)
    assert "GITHUB_STEP_SUMMARY is not set" in assert_one_line(
        nowhere.returncode, nowhere.stderr
    )
    for path, said in ((tmp_path, "allowed: a regular file"), ("/proc/no", "No such file")):
        no_file = run(*compare, cwd=recorded, GITHUB_STEP_SUMMARY=str(path))
        assert said in assert_one_line(no_file.returncode, no_file.stderr)
        assert no_file.stdout == "", "said before anything is compared"


def test_no_name_of_a_tensor_ends_the_report_of_a_summary(tmp_path):
    for side, value in (("a", 1.0), ("b", 2.0)):
        with Recorder(tmp_path / side, framework=side, dtype="float64") as recorder:
            recorder.step(0, {"weight/" + 5 * "`": np.array([value])})
    summary = tmp_path / "summary.md"
    compare = ("parity", "compare", "a", "b", "--github")
    assert run(*compare, cwd=tmp_path, GITHUB_STEP_SUMMARY=str(summary)).returncode == 1
    text = summary.read_text()
    (fence,) = {line for line in text.splitlines() if line and set(line) == {"`"}}
    assert text.count(fence) == 2
