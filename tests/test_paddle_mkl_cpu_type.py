"""The kernels of Paddle's MKL: measured here, chosen by speed, kept for the next start."""

import json
import os
from pathlib import Path

import pytest
from conftest import run_python

from paddle_impl import mkl_cpu_type

ROOT = Path(__file__).resolve().parent.parent


def test_what_is_clearly_faster_is_chosen():
    assert mkl_cpu_type.choose({"": 25.0, "5": 80.0, "7": None}) == "5"
    assert mkl_cpu_type.choose({"": 25.0, "5": 80.0, "7": 150.0}) == "7"
    assert mkl_cpu_type.choose({"": 25.0, "5": 80.0, "7": 85.0}) == "5"
    assert mkl_cpu_type.choose({"": 150.0, "5": 80.0, "7": 151.0}) == ""
    assert mkl_cpu_type.choose({"": None, "5": None, "7": None}) == ""


def test_kernels_that_the_processor_lacks_are_not_measured():
    library = mkl_cpu_type._library()
    rates = {
        kernels: mkl_cpu_type.measured_rate(library, kernels)
        for kernels in mkl_cpu_type.KERNELS
    }
    assert 1e9 < rates[""] < 1e13
    # MKL's AVX-512 kernels need these of its instructions
    needed = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    has = needed <= set(Path("/proc/cpuinfo").read_text().split())
    assert (rates["7"] is not None) == has


def test_the_choice_is_measured_once_and_kept(tmp_path):
    chosen = mkl_cpu_type.fastest_kernels(tmp_path)
    (path,) = tmp_path.glob("mkl-*/choice.json")
    values = json.loads(path.read_bytes())
    assert values["choice"] == chosen == mkl_cpu_type.choose(values["measured"])
    other = "7" if chosen == "5" else "5"
    path.write_text(json.dumps(values | {"choice": other}))
    assert mkl_cpu_type.fastest_kernels(tmp_path) == other


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"choice": "99"}', '{"choice": []}'])
def test_a_damaged_choice_is_measured_again(damage, tmp_path):
    mkl_cpu_type.fastest_kernels(tmp_path)
    (path,) = tmp_path.glob("mkl-*/choice.json")
    path.write_text(damage)
    chosen = mkl_cpu_type.fastest_kernels(tmp_path)
    # not the choice of before: a busy machine may measure other rates
    values = json.loads(path.read_bytes())
    assert values["choice"] == chosen == mkl_cpu_type.choose(values["measured"])


def test_a_folder_that_cannot_be_written_to_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    assert mkl_cpu_type.fastest_kernels(tmp_path / "file") in mkl_cpu_type.KERNELS


@pytest.mark.parametrize(("given", "expected"), [(None, "kept"), ("4", "4")])
def test_the_engine_is_loaded_with_the_choice_but_for_the_users_own(given, expected, tmp_path):
    """The variable is set before MKL is loaded."""
    environment = {
        name: each for name, each in os.environ.items() if name != mkl_cpu_type.VARIABLE
    }
    environment |= {"XDG_CACHE_HOME": str(tmp_path)}
    if given is not None:
        environment[mkl_cpu_type.VARIABLE] = given
    code = "import os; from paddle_impl.engine import load_engine; load_engine(1);"
    code += f"print(os.environ.get({mkl_cpu_type.VARIABLE!r}, ''))"
    done = run_python("-c", code, env=environment, check=True)
    kept = [json.loads(path.read_bytes())["choice"] for path in tmp_path.glob("*/*/*.json")]
    assert kept == ([] if given else [done.stdout.strip()])
    if given:
        assert done.stdout.strip() == expected


REGISTERED = """
import ctypes, os
from paddle_impl.engine import load_engine
load_engine(threads=1)
read = ctypes.CDLL(None).getenv
read.restype = ctypes.c_char_p
def registered():
    return read(f"__KMP_REGISTERED_LIB_{os.getpid()}".encode()) is not None
print(registered(), flush=True)
if os.fork() == 0:
    load_engine(threads=1)  # as every training of a fork server does
    print(registered(), flush=True)
    os._exit(0)
os.wait()
"""


def test_openmp_sets_its_variable_before_replicas_compute():
    """Set by the first replica instead, it moves what another one is reading at that time."""
    done = run_python("-c", REGISTERED, check=True, timeout=100)
    assert done.stdout.split() == ["True", "True"]


def test_paddle_is_loaded_where_home_cannot_be_written():
    code = (
        "import os; from paddle_impl.engine import load_engine; "
        "load_engine(1); print(os.environ['HOME'])"
    )
    done = run_python("-c", code, env=os.environ | {"HOME": "/proc"})
    assert (done.returncode, done.stdout) == (0, "/proc\n"), done.stderr
