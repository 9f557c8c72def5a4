"""What docs/security.md says is never called is never called; and what is read is no code."""

import ast
import builtins
from pathlib import Path

from parity.twins.launch.processes import ROOT

SOURCES = sorted(
    path
    for folder in ("parity", "data", "paddle_impl", "tf_impl")
    for path in (ROOT / folder).rglob("*.py")
)

# Modules that run what they read, or are known for it; and who may have one, why.
NEVER_IMPORTED = {
    "pickle",
    "cloudpickle",
    "dill",
    "shelve",
    "marshal",
    "paddle.dataset",
    "paddle.hub",
    "paddle.utils.download",
    "paddle.distributed.fleet.utils.fs",
}
EXCEPT = {("data/segmenters.py", "marshal")}  # a cache of our own, behind a hash

NEVER_CALLED = {
    "os.system",
    "os.popen",
    "paddle.load",
    "paddle.jit.load",
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "pd.read_pickle",
    "keras.models.load_model",
    "tf.keras.models.load_model",
    "tf.saved_model.load",
    "eval",
    "exec",
}
# the sides' own source, with a planted fault, in the process of a test
EXCEPT_CALLS = {("parity/twins/launch/edited_source.py", "exec")}


def dotted(node):
    """Return a name such as `os.system`; None for anything else."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def forbidden(source, name):
    """Yield what a module does that it should not."""
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            parts = module.split(".")
            heads = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
            for each in heads & (NEVER_IMPORTED | NEVER_CALLED) - set(dir(builtins)):
                if (name, each) not in EXCEPT:
                    yield f"imports {each}"
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        if called in NEVER_CALLED and (name, called) not in EXCEPT_CALLS:
            yield f"calls {called}"
        module = next(
            (m for m in NEVER_IMPORTED if called and called.startswith(f"{m}.")), None
        )
        if module is not None and (name, module) not in EXCEPT:
            yield f"calls {called}"
        given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        if given.get("shell"):
            yield "starts a shell"
        if called in ("np.load", "numpy.load") and given.get("allow_pickle") is not False:
            yield "np.load without allow_pickle=False"


def test_nothing_is_called_that_runs_what_it_reads():
    assert len(SOURCES) > 200
    found = {
        f"{name}: {each}"
        for path in SOURCES
        for name in [path.relative_to(ROOT).as_posix()]
        for each in forbidden(path.read_text(encoding="utf-8"), name)
    }
    assert found == set()


def test_what_the_templates_mark_as_safe_is_the_projects_own():
    """Everything else is escaped."""
    templates = (ROOT / "parity/report/templates").glob("*.jinja")
    marked = [
        line.strip()
        for path in templates
        for line in Path(path).read_text(encoding="utf-8").splitlines()
        if "| safe" in line or "|safe" in line
    ]
    assert sorted(marked) == ["{{ script | safe }}", "{{ style | safe }}"]
