"""The two sides beside each other: the same files, names, order, parameters and docstrings.

Read from the source alone. What must differ is listed here, each with its reason.
"""

import ast
import builtins
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SIDES = ("paddle_impl", "tf_impl")

# Files of one side alone. Only Paddle's program can be changed once its gradients are there;
# only TensorFlow lets a loop have a gradient of ours.
OWN_FILES = {
    "paddle_impl": {
        "executor.py",
        "program_kernels.py",
        "loop_gradients.py",
        "loop_reads.py",
        "loop_steps.py",
        "mkl_cpu_type.py",
    },
    "tf_impl": {"scan.py", "eager_profiler.py"},
}
# A strategy is one way of running replicas, which another framework may not have, or have by
# quite another engine; see docs/extending.md. These are the same on both sides.
STRATEGIES = ("__init__", "synchronous_base", "serving", "asynchronous", "layers")

# Public name -> why only one side has it.
OWN_NAMES = {
    "engine.without_greeting": "Horovod, and the TensorFlow that it needs, log more",
    "kernels.token_cross_entropy": "Paddle's is replaced in the finished program",
    "strategies/serving.check_device": "only Paddle's servers are limited to CPUs",
    "optimizers.update": "with Paddle, each replica's update is a part of its program",
    "strategies/synchronous_base.feed_types": "Paddle's programs declare their data themselves",
}

# Name -> why its parameters and its Args differ.
OWN_PARAMETERS = {
    "weights.load_snapshot": "variables live in a scope per replica | in one session",
    "weights.read_snapshot": "variables live in a scope per replica | in one session",
}

# Name -> why its Returns differ.
OWN_RESULTS = {
    "optimizers.apply_update": "the update is part of the program | an operation to be run",
}

# What `Strategy` and `DecodingModel` describe once, for all frameworks.
INTERFACES = [
    ROOT / "parity" / "twins" / "training" / "strategy.py",
    *(ROOT / "parity" / "twins" / "decoding").glob("*.py"),
]

# Words that stand for each other, first side's and second's.
WORDS = [
    ("Paddle's ParallelExecutor", "TensorFlow towers"),
    ("paddle_impl", "tf_impl"),
    ("Paddle", "TensorFlow"),
    ("`paddle`", "`tensorflow`"),
    ("one place per replica", "a device name per replica"),
]


def files(side: str) -> list[str]:
    folder = ROOT / side
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    of_strategies = {name for name in found if name.startswith("strategies/")}
    shared = {f"strategies/{name}.py" for name in STRATEGIES}
    return sorted(found - OWN_FILES[side] - (of_strategies - shared))


MODULES = files("paddle_impl")


@cache
def parsed(side: str, module: str) -> ast.Module:
    return ast.parse((ROOT / side / module).read_text(encoding="utf-8"))


def public(tree: ast.AST, prefix: str = "") -> dict[str, ast.AST]:
    """Return the public functions, classes and methods of a module, in their order."""
    found: dict[str, ast.AST] = {}
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name.startswith("_") and node.name != "__init__":
                continue
            found[prefix + node.name] = node
            if isinstance(node, ast.ClassDef):
                found |= public(node, f"{prefix}{node.name}.")
    return found


def constants(tree: ast.Module) -> list[str]:
    """Return the public names that a module sets, but for short names of the framework."""
    names = [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    return [name for name in names if not name.startswith("_") and name not in ("tf1",)]


def words(text: str) -> str:
    """Return a text with the words of the second side in place of the first's, unwrapped."""
    for first, second in WORDS:
        text = text.replace(first, second)
    return re.sub(r"\s+", " ", text)


DESCRIBED = {
    method.name
    for path in INTERFACES
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    for method in node.body
    if isinstance(method, ast.FunctionDef)
} | {"__init__"}


def sections(name: str, node: ast.AST) -> dict[str, str]:
    """Return a docstring by its sections; what precedes the first is under ''."""
    text = ast.get_docstring(node) or ""
    # methods alone: a function of the same name is another thing
    described = name.count(".") > 1 and name.rpartition(".")[2] in DESCRIBED
    assert text or described, f"{name} has no docstring"
    parts = re.split(r"^(Args|Returns|Raises|Attributes|Source):", text, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def signature(node: ast.FunctionDef) -> dict[str, str | None]:
    """Return the parameters in order, each with its default as written."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found = {argument.arg: default and ast.unparse(default) for argument, default in pairs}
    for star, rest in (("*", arguments.vararg), ("**", arguments.kwarg)):
        if rest:
            found[star + rest.arg] = None
    return found


def pairs():
    for module in MODULES:
        first, second = (public(parsed(side, module)) for side in SIDES)
        for name in sorted(first.keys() & second.keys()):
            yield pytest.param(
                f"{module.removesuffix('.py').replace('/', '.')}.{name}",
                first[name],
                second[name],
                id=f"{module}:{name}",
            )


def test_both_sides_have_the_same_files():
    assert files("tf_impl") == MODULES
    assert {f"strategies/{name}.py" for name in STRATEGIES} <= set(MODULES)
    for side, names in OWN_FILES.items():
        assert all((ROOT / side / name).exists() for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_modules_have_the_same_public_names_in_the_same_order(module):
    first, second = (parsed(side, module) for side in SIDES)
    own = {name for name in OWN_NAMES if name.startswith(f"{module.removesuffix('.py')}.")}
    own = {name.split(".", 1)[1] for name in own}
    # the exception must still be one, or it hides the next difference
    assert own <= set(public(first)) ^ set(public(second))
    names = [[name for name in public(tree) if name not in own] for tree in (first, second)]
    assert names[0] == names[1]
    assert constants(first) == constants(second)


@pytest.mark.parametrize("module", MODULES)
def test_modules_have_the_same_docstring(module):
    first, second = (ast.get_docstring(parsed(side, module)) or "" for side in SIDES)
    if module != "__init__.py":  # that of a package says what is its own
        assert words(first) == words(second)


@pytest.mark.parametrize(("name", "first", "second"), list(pairs()))
def test_signatures_are_the_same(name, first, second):
    assert type(first) is type(second)
    if isinstance(first, ast.ClassDef):
        return
    if name in OWN_PARAMETERS:
        # the exception must still be one, or it hides the next difference
        assert signature(first) != signature(second)
        return
    assert list(signature(first).items()) == list(signature(second).items())
    returns = [node.returns and ast.unparse(node.returns) for node in (first, second)]
    assert returns[0] == returns[1]


@pytest.mark.parametrize(("name", "first", "second"), list(pairs()))
def test_docstrings_are_the_same(name, first, second):
    texts = [{k: words(v) for k, v in sections(name, node).items()} for node in (first, second)]
    for exceptions, section in ((OWN_PARAMETERS, "Args"), (OWN_RESULTS, "Returns")):
        if name in exceptions:
            assert texts[0].pop(section) != texts[1].pop(section)
    assert texts[0] == texts[1]


def functions(side: str, module: str) -> dict[str, ast.FunctionDef]:
    """Return every function of a module, private ones too."""
    return {
        node.name: node
        for node in parsed(side, module).body
        if isinstance(node, ast.FunctionDef)
    }


def assigned(function: ast.FunctionDef) -> list[str]:
    """Return what a function assigns to, in the order of its lines."""
    assignments = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For)
    ]
    return [
        ast.unparse(target)
        for node in sorted(assignments, key=lambda node: node.lineno)
        for target in getattr(node, "targets", [getattr(node, "target", None)])
    ]


def called(function: ast.FunctionDef) -> list[str]:
    """Return the layers and other functions of the project that a function calls, in order.

    Python's own are left out: Paddle stacks lists where TensorFlow stacks tuples, too.
    """
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [
        node.func.id
        for node in sorted(calls, key=lambda node: (node.lineno, node.col_offset))
        if isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id)
    ]


@pytest.mark.parametrize("name", functions("paddle_impl", "networks.py"))
def test_networks_read_the_same_in_both_dialects(name):
    """The same lines but for a call of the framework: as many, assigning the same names."""
    first, second = (functions(side, "networks.py")[name] for side in SIDES)
    assert list(signature(first).items()) == list(signature(second).items())
    assert assigned(first) == assigned(second)
    assert called(first) == called(second)


def test_differences_are_marked():
    """Where only one side does a thing, a comment says why; without a reason it is no mark."""
    reasons = [
        reason
        for side in SIDES
        for module in files(side)
        for reason in re.findall(r"# differs:(.*)", (ROOT / side / module).read_text())
    ]
    assert len(reasons) > 20
    assert all(len(reason.split()) >= 4 for reason in reasons)
