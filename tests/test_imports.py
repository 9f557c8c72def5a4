"""Imports point one way, seen in the source alone."""

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from conftest import run_python

from parity.twins.converge.trainings import code_files
from parity.twins.spec.frameworks import FRAMEWORKS as SPECS

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = {"paddle", "tensorflow", "keras", "torch"}
PACKAGES = ("data", "parity", "paddle_impl", "tf_impl")
# Which packages each may import, of the project's own; "parity.base" allows that part alone.
# The laboratory reads the texts of its networks, too.
ALLOWED = {
    "data": {"data", "parity.base"},
    "parity": {"parity"},
    "paddle_impl": {"paddle_impl", "parity", "data"},
    "tf_impl": {"tf_impl", "parity", "data"},
}
OWN_FRAMEWORK = {"paddle_impl": {"paddle"}, "tf_impl": {"tensorflow"}}
# What may import by a name that stands elsewhere: a server loads the engine that it is told to,
# in a process that serves no other purpose; registries name what would load a framework.
BY_NAME = {
    ROOT / "parity" / "twins" / "launch" / "fork_server.py",
    ROOT / "parity" / "base" / "plugins.py",
}
# A peer is a training of its own, as `train.py` is, in the framework that it is named for.
PEERS = {
    "parity/twins/peers/command.py": set(),
    "parity/twins/peers/keras_networks.py": {"keras", "tensorflow"},
    "parity/twins/peers/keras_peer.py": {"keras", "tensorflow"},
    "parity/twins/peers/pytorch_networks.py": {"torch"},
    "parity/twins/peers/pytorch_peer.py": {"torch"},
    "parity/twins/peers/pytorch_data_parallel.py": {"torch"},
    "parity/twins/peers/pytorch_replica.py": {"torch"},
    "parity/twins/peers/pytorch_witness.py": {"torch"},
}
# Each watches a framework's trainings, and loads it only when it is called.
WATCHERS = {f"parity/{name}.py": {name} for name in sorted(FRAMEWORKS)}
WATCHERS["parity/keras.py"] |= {"tensorflow", "torch"}  # which Keras runs on
WATCHERS["parity/watch/programs.py"] = {"paddle"}  # of a static graph
WATCHERS["parity/watch/sessions.py"] = {"tensorflow"}  # of 1.x
# The rooms of the library and of its laboratory, from the lowest level to the highest. Each
# imports lower levels only; the laboratory may import all of the library, never the reverse.
LIBRARY = (
    ("base",),
    ("trace",),
    ("align", "compare"),
    ("pair", "report"),
    ("cli", "watch"),
)
LABORATORY = (
    ("spec", "decoding"),
    ("cli", "trace", "oracle", "processes"),
    ("training", "launch", "compare"),
    ("run", "chat", "peers"),
    ("bench", "faults", "converge", "scale"),
    ("sweep",),
    ("commands",),
)
LEVELS = {"parity": LIBRARY, "parity/twins": LABORATORY}
TESTS = {each.stem for each in (ROOT / "tests").glob("*.py")} | {"tests"}
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def imported_modules(path: Path) -> set[str]:
    """Return the full names of all that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import; modules have full names"
            # the names as well: `from parity import spec` imports a module
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            assert path in BY_NAME, f"{path}: imports by a name that cannot be read here"
    return found


def imported(path: Path) -> set[str]:
    """Return the top-level names of all modules that a file imports."""
    return {name.split(".")[0] for name in imported_modules(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    package = path.relative_to(ROOT).parts[0]
    names, name = imported(path), path.relative_to(ROOT).as_posix()
    allowed = ALLOWED[package] | ({"data"} if name.startswith("parity/twins/") else set())
    for module in imported_modules(path):
        if module.split(".")[0] in PACKAGES:
            assert any(f"{module}.".startswith(f"{each}.") for each in allowed), module
    own = (PEERS | WATCHERS).get(name, OWN_FRAMEWORK.get(package, set()))
    assert names & FRAMEWORKS <= own
    of_tests = TESTS if path.name == "pytest_plugin.py" else TESTS | {"pytest"}
    assert not names & of_tests
    assert path.parent.name == "peers" or not any(
        f"{module}.".startswith("parity.twins.peers.") for module in imported_modules(path)
    )


def room_of(module: str) -> tuple[str, str] | None:
    """Return the half and the room of a module of parity; None for any other module."""
    parts = module.split(".")
    if parts[0] != "parity" or len(parts) < 2:
        return None
    half = "parity/twins" if parts[1] == "twins" else "parity"
    rest = parts[2:] if parts[1] == "twins" else parts[1:]
    return (half, rest[0]) if rest else None


@pytest.mark.parametrize("half", LEVELS)
def test_every_room_has_a_level(half):
    found = {path.parent.name for path in (ROOT / half).glob("*/__init__.py")} - {"twins"}
    found |= {"commands"} if half == "parity/twins" else set()
    assert found == {room for level in LEVELS[half] for room in level}
    assert len(LIBRARY) <= 5
    assert len(LABORATORY) <= 7


@pytest.mark.parametrize(
    ("half", "room"),
    [(half, room) for half, levels in LEVELS.items() for level in levels for room in level],
)
def test_a_room_imports_lower_levels_only(half, room):
    place = {name: i for i, level in enumerate(LEVELS[half]) for name in level}
    folder = ROOT / half / room
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    for path in paths:
        for module in imported_modules(path):
            other = room_of(module)
            if other is None or other == (half, room):
                continue
            where = f"{path.relative_to(ROOT)} imports {module}"
            if other[0] == half:
                assert place.get(other[1], -1) < place[room], where
            else:
                assert half == "parity/twins", where


@pytest.mark.parametrize("framework", ["paddle", "tensorflow", "pytorch"])
def test_a_training_is_not_reused_if_code_that_it_imports_has_changed(framework):
    known, hashed = SPECS.get(framework), set(code_files(framework))
    left = list((ROOT / (known.folder if known else "parity/twins/peers")).rglob("*.py"))
    seen = set(left)
    while left:
        for module in imported_modules(left.pop()):
            path = ROOT.joinpath(*module.split("."))
            places = (path, path.parent)  # the name may be of something in a module
            found = {each.with_suffix(".py") for each in places if each != ROOT} & {*FILES}
            found -= seen
            seen |= found
            left += found
    assert ROOT / "parity" / "base" / "errors.py" in seen
    assert not {str(path.relative_to(ROOT)) for path in seen - hashed}


def test_the_library_names_the_laboratory_in_one_place():
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("parity/") and not name.startswith("parity/twins/"):
            text = path.read_text(encoding="utf-8")
            named = re.search(r"['\"]parity\.twins", text)
            assert bool(named) == (name == "parity/base/laboratory.py"), name


def test_no_module_hides_a_framework_or_a_library():
    """The folder of a `train.py` may come before the libraries on the path; parity is none."""
    hidden = FRAMEWORKS | sys.stdlib_module_names | {"numpy", "click"}
    for path in FILES:
        own = path.relative_to(ROOT).as_posix() in WATCHERS
        if path.parent.parent == ROOT and path.stem != "__init__" and not own:
            assert path.stem not in hidden, path


def test_harness_and_data_load_no_framework():
    """As they run, too: a library might bring one in."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in FILES
        if path.relative_to(ROOT).parts[0] in ("data", "parity")
        and path.parent.name != "peers"
        and path.stem not in ("__init__", "__main__")
    ]
    code = f"import sys\nfor name in {modules}: __import__(name)\nprint(*sys.modules)"
    done = run_python("-c", code, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & FRAMEWORKS
    assert {"parity", "data"} <= loaded


@pytest.mark.parametrize("side", OWN_FRAMEWORK)
def test_no_circle_of_imports_within_a_side(side):
    """Imports inside functions count: none of them is there to hide a circle."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): imported_modules(path)
        for path in FILES
        if path.relative_to(ROOT).parts[0] == side
    }
    graph = {
        name: {each for each in modules if any(f"{i}.".startswith(f"{each}.") for i in found)}
        for name, found in modules.items()
    }
    assert any(graph.values())
    TopologicalSorter(graph).prepare()  # raises CycleError, with the circle
