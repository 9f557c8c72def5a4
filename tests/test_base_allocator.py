"""How a process gets its memory: huge pages are asked for once, or left where settled."""

import json
import os

import pytest
from conftest import run_python

from parity.base.process import with_huge_pages
from parity.twins.launch.processes import ROOT

TUNABLES = "GLIBC_TUNABLES"
SAY = (
    "import json, os, sys; sys.path.insert(0, {root!r}); "
    "from parity.base.process import use_huge_pages; print(os.getpid(), flush=True); "
    "use_huge_pages(); print(json.dumps([os.environ[{name!r}], sys.argv[1:]]))"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_huge_pages_are_asked_for_unless_that_is_settled(before, after):
    given = {"PATH": "/bin"} | ({} if before is None else {TUNABLES: before})
    assert with_huge_pages(given) == {"PATH": "/bin", TUNABLES: after}
    assert given.get(TUNABLES) == before


def test_a_program_begins_anew_but_once_with_its_arguments():
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES}
    code = SAY.format(root=str(ROOT), name=TUNABLES)
    done = run_python("-I", "-c", code, "a b", "--flag", cwd=None, env=environment, check=True)
    first, second, said = done.stdout.splitlines()
    assert first == second, "it is the same process"
    assert json.loads(said) == ["glibc.malloc.hugetlb=1", ["a b", "--flag"]]
