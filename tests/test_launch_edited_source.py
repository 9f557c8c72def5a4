"""A process with edited source runs the edited lines, and no file changes."""

import json

import pytest
from conftest import run_python

from parity.twins.launch.edited_source import Edit, edited_texts
from parity.twins.launch.processes import ROOT

MODULE = '''"""A module."""


def answer():
    return 1


def fail():
    raise ValueError("as planted")
'''
SCRIPT = """import inspect, json, sys, traceback
from package import module, other

def main():
    try:
        module.fail()
    except ValueError:
        told = traceback.format_exc()
    print(json.dumps([module.answer(), other.answer(), inspect.getsource(module.answer),
        told, __name__, __file__, sys.argv[1:]]))

if __name__ == "__main__":
    main()
"""
RUN = """
import json, sys
from parity.twins.launch.edited_source import EditedSource
root, script, sources, *sys.argv[1:] = json.loads(sys.argv[1])
sys.path.insert(0, root)
import package.module, package.other  # as a fork server has
edited = EditedSource(sources)
edited.install(["package"])
edited.run_script(script)
"""


@pytest.fixture
def project(tmp_path):
    """Return a project of two modules and a script."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "module.py").write_text(MODULE)
    (tmp_path / "package" / "other.py").write_text("from package.module import answer\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(project, edits, *words):
    script = project / "script.py"
    sources = {str(project / name): text for name, text in edited_texts(edits, project).items()}
    sources.setdefault(str(script), script.read_text())
    given = json.dumps([str(project), str(script), sources, *words])
    done = run_python("-c", RUN, given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


EDITS = [
    Edit("package/module.py", '"""A module."""\n', '"""A module."""\n\nLONGER = 1\n'),
    Edit("package/module.py", "return 1", "return 2"),
    Edit("script.py", "module.answer(), other", "-module.answer(), other"),
]


def test_modules_and_scripts_run_as_edited_and_no_file_changes(project):
    assert run(project, [], "--flag")[:2] == [1, 1]  # leaves bytecode of the unedited modules
    before = contents(project)
    one, other, source, told, name, file, words = run(project, EDITS, "--flag", "x")
    assert (one, other) == (-2, 2), "of a module that imports it, too"
    assert source == "def answer():\n    return 2\n"
    assert (name, file, words) == ("__main__", str(project / "script.py"), ["--flag", "x"])
    # the lines are those that ran, two below those on disk
    assert f'"{project / "package" / "module.py"}", line 11, in fail' in told
    assert 'raise ValueError("as planted")' in told
    assert contents(project) == before


def test_an_edit_that_no_longer_fits_is_refused():
    for old, count in (("no such line", 0), ("tf", r"\d\d+")):
        with pytest.raises(ValueError, match=f"contains {count} times, not once: '{old}'"):
            edited_texts([Edit("tf_impl/layers.py", old, "x")], ROOT)
