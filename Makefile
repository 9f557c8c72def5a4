# Everything is installed into .venv and written under out; `make clean` removes both.
# `make help` lists the commands.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup test test-all thorough hunt-once crashes signals torch jax horovod horovod-test gpu gpu-test \
    gallery parity hunt fuzz lock wheel clean
unexport PYTHONHOME PYTHONPATH
# Without bytecode on disk each process compiles the frameworks anew: importing them takes three
# times as long (TensorFlow 21 s in place of 7).
unexport PYTHONDONTWRITEBYTECODE

# The interpreter to make .venv from. By default the first candidate that runs and is 3.10,
# 3.11 or 3.12: a name on the PATH may be a version manager's stub for one not installed.
PYTHON ?=
CANDIDATES := python3.12 python3.11 python3.10 python3 python

# More options for the commands below, such as `make test PYTEST_FLAGS="-k oracle"`.
PYTEST_FLAGS ?=
PARITY_FLAGS ?=
NETWORKS ?= language-model seq2seq
HUNT_FLAGS ?=
FUZZ_FLAGS ?=
LOCK_FLAGS ?=
SCHEDULES ?= 200
SEED ?= 1
# How many files of Horovod are compiled at a time.
HOROVOD_JOBS ?= 2

VENV_PYTHON := .venv/bin/python
# The workers take what a test has trained from each other: see tests/conftest.py.
IN_WORKERS := --numprocesses auto --dist worksteal
READY := .venv/ready
HOROVOD := .venv-horovod
GPU := .venv-gpu
export HYPOTHESIS_STORAGE_DIRECTORY := out/cache/hypothesis

help:
	@cat <<-'END'
	make parity  set up, train in both frameworks on the embedded corpus, compare
	make test    set up, then formatting, lint, types, documentation and the tests
	make test-all  that, then what takes long: the tests marked as thorough, those of Horovod
	             where it can be built, and each planted fault once (45 minutes)
	make hunt    set up, and plant every fault of the catalogue in either side's code (more than
	             half an hour)
	make fuzz    set up, install Atheris in .venv, and give each reader of a file a million
	             damaged files (FUZZ_FLAGS="--inputs 10000 losses" for fewer, or for some)
	make crashes set up, and stop both trainers at every single change that they make to files
	             (a quarter of an hour)
	make signals set up, and send signals at random moments to 200 trainings with each strategy of
	             each side (a day; SCHEDULES=5 for fewer, SEED=2 for others)
	make setup   only set up: what requirements.lock pins, in .venv
	make torch   set up, and install PyTorch in .venv, which more of the tests then compare with
	make jax     set up, and install JAX, flax and optax in .venv: its trainings are then tested, too
	make gallery  set up, and install those, PyTorch, torchvision and transformers in .venv, whose
	             models the thorough tests then compare with their ports
	make horovod set up, and make .venv-horovod, in which the strategy horovod runs: it has a
	             TensorFlow of its own, and Horovod is compiled (3 minutes)
	make horovod-test  make that, and run the tests of the strategy
	make gpu     set up, and make .venv-gpu, whose Python trains with --device gpu: both
	             frameworks for NVIDIA's GPUs, and CUDA for each (5 GB; no GPU is needed for it)
	make gpu-test  make that, and run its tests; with a GPU, also compare the two networks on it
	make lock    write requirements.lock, requirements-horovod.lock and the two locks for GPUs
	             in deploy from pyproject.toml; with LOCK_FLAGS=--upgrade at the newest versions
	make wheel   build the package of parity alone, in out/dist
	make clean   remove .venv, .venv-horovod, .venv-gpu, out and what the build left
	To choose the interpreter: make clean, then make setup PYTHON=/path/to/python3.11
	END

parity: setup
	@status=0
	for network in $(NETWORKS); do
	    out=out/parity; if [ $$network != language-model ]; then out=out/parity/$$network; fi
	    worst=0
	    $(VENV_PYTHON) -m parity run --network $$network --out $$out $(PARITY_FLAGS) || worst=$$?
	    if [ -f $$out/report.json ]; then echo "report: $$out/report.json"; fi
	    if [ $$worst -gt $$status ]; then status=$$worst; fi
	done
	exit $$status

# Cheap checks first. .ONESHELL stops at the first that fails because of -e. Another -m in
# PYTEST_FLAGS takes the place of this one.
test: setup
	@set -x
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m mypy parity data
	$(VENV_PYTHON) -m mkdocs build --strict --quiet --site-dir out/site
	$(VENV_PYTHON) -m pytest $(IN_WORKERS) -m "not thorough" $(PYTEST_FLAGS)

# .ci/run takes these one by one, as long as there is time.
test-all: test thorough
	@if $(MAKE) --silent horovod; then $(MAKE) horovod-test; fi
	$(MAKE) hunt-once

thorough: setup
	@$(VENV_PYTHON) -m pytest $(IN_WORKERS) -m "thorough and not horovod and not jax" $(PYTEST_FLAGS)

# The sides and kinds of kernel take turns.
hunt-once: setup
	@$(VENV_PYTHON) -m parity faults --once --dtype float64 --kernels fast,plain

# Every fault, in both frameworks, precisions and kinds of kernel.
hunt: setup
	@$(VENV_PYTHON) -m parity faults --kernels fast,plain $(HUNT_FLAGS)

fuzz: setup
	@base=$$($(VENV_PYTHON) -c 'import sys; print(sys._base_executable)')
	$(INDEX_OF_PIP)
	if ! $(VENV_PYTHON) -c 'import atheris' 2>/dev/null; then
	    $(CONSTRAINTS)
	    .venv/bin/uv pip install --quiet --python $(VENV_PYTHON) \
	        --constraints .venv/constraints --group fuzz
	fi
	$(VENV_PYTHON) tests/fuzz.py $(FUZZ_FLAGS)

# The tests try each change that is made to files by the code that all trainers share, and some
# of each trainer's own.
crashes: setup
	@PARITY_REQUIRE_COMPILER=1 PARITY_EVERY_CRASH=1 $(VENV_PYTHON) -m pytest \
	    tests/test_crash_at_every_write.py $(PYTEST_FLAGS)

# One failure does not keep the next strategy from its turn; its line has the seed and the number.
signals: setup
	@PARITY_SIGNAL_SCHEDULES=$(SCHEDULES) PARITY_SIGNAL_SEED=$(SEED) $(VENV_PYTHON) -m pytest \
	    tests/test_signal_schedules.py $(PYTEST_FLAGS)

setup: $(READY)

# What the lock pins, for what is installed beside it.
CONSTRAINTS = sed -n 's/^\([a-zA-Z].*==[^\\]*[^ \\]\) *\\$$/\1/p' requirements.lock >.venv/constraints

# uv and pip read different settings. Where only pip was given an index, uv gets that one.
define INDEX_OF_PIP
if [ -z "$${UV_DEFAULT_INDEX-}$${UV_INDEX_URL-}" ]; then
    index=$$("$$base" -m pip config list 2>/dev/null |
        sed -n "s/^[^=]*\.index-url='\(.*\)'\$$/\1/p" | head -n 1) || index=
    index=$${PIP_INDEX_URL:-$$index}
    if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi
fi
endef

# The stamp is written last: an environment whose installation was interrupted is made again. So
# is one whose lock has changed: neither installer would remove what a new lock no longer names.
$(READY): requirements.lock
	@in_range='import sys
	known = sys.platform == "linux" and sys.implementation.name == "cpython"
	if not (known and (3, 10) <= sys.version_info[:2] < (3, 13)): sys.exit(1)
	# In an active environment, take the Python it was made from: the environment may be the
	# .venv that is about to be replaced.
	print(getattr(sys, "_base_executable", None) or sys.executable)'
	candidates=($(if $(PYTHON),'$(PYTHON)',$(CANDIDATES)))
	base=
	for candidate in "$${candidates[@]}"; do
	    if base=$$("$$candidate" -c "$$in_range" 2>/dev/null); then break; fi
	done
	if [ -z "$$base" ]; then
	    echo "error: none of ($${candidates[*]}) is CPython 3.10, 3.11 or 3.12 on Linux:" \
	        "install one, or name it with make PYTHON=/path/to/python3" >&2
	    exit 2
	fi

	plain_venv() {
	    if ! "$$base" -c 'import ensurepip, venv' 2>/dev/null; then
	        echo "error: $$base cannot make environments with pip: install uv or the" \
	            "system's package for it (Debian, Ubuntu: python3-venv)" >&2
	        exit 2
	    fi
	    "$$base" -m venv .venv
	}
	# Install one package by its lines of the lock: at that version, and with its hashes.
	pip_one() {
	    awk -v start="$$1==" '/^[^ #]/ { keep = index($$0, start) == 1 } keep' \
	        requirements.lock > ".venv/$$1.lock"
	    pip_install -r ".venv/$$1.lock"
	}
	pip_install() {
	    PIP_USER=0 $(VENV_PYTHON) -m pip --disable-pip-version-check install --no-input \
	        --require-hashes "$$@"
	}

	rm -rf .venv
	hash -r
	echo "making .venv with $$base; the first time about 1 GB is downloaded"
	if uv --version >/dev/null 2>&1; then
	    uv=uv
	    uv venv --quiet --python "$$base" .venv
	else
	    uv=.venv/bin/uv
	    plain_venv
	    pip_one uv || echo "uv cannot be installed: going on with pip" >&2
	fi
	$(INDEX_OF_PIP)
	if ! "$$uv" pip install --python $(VENV_PYTHON) --require-hashes \
	    --build-constraints requirements.lock -r requirements.lock; then
	    echo "uv could not install requirements.lock: trying pip" >&2
	    if ! $(VENV_PYTHON) -m pip --version >/dev/null 2>&1; then plain_venv; fi
	    pip_one setuptools
	    # Build source archives with the setuptools just installed, not with the newest one.
	    pip_install --no-build-isolation --use-pep517 -r requirements.lock
	fi
	touch $@

# PyTorch is not in the lock. Its build for processors is on an index of its own, which uv knows by
# name; without that index, pip may have been given a folder that holds it. Nothing that the lock
# pins is moved, and what cannot be imported is removed again.
torch: setup
	@uv=.venv/bin/uv
	base=$$($(VENV_PYTHON) -c 'import sys; print(sys._base_executable)')
	$(CONSTRAINTS)
	by_uv() {
	    "$$uv" pip install --quiet --python $(VENV_PYTHON) --constraints .venv/constraints \
	        --torch-backend cpu --group witnesses
	}
	by_pip() {
	    PIP_USER=0 "$$base" -m pip --disable-pip-version-check --python $(VENV_PYTHON) \
	        install --quiet --no-input --constraint .venv/constraints "$$@"
	}
	if $(VENV_PYTHON) -c 'import torch' 2>/dev/null; then exit 0; fi
	by_uv 2>.venv/torch.log ||
	    { by_pip --no-index --no-deps torch && by_pip filelock fsspec networkx sympy; } \
	        2>>.venv/torch.log || true
	if ! $(VENV_PYTHON) -c 'import torch' 2>>.venv/torch.log; then
	    "$$uv" pip uninstall --quiet --python $(VENV_PYTHON) torch 2>/dev/null || true
	    echo "error: PyTorch cannot be installed: see .venv/torch.log" >&2
	    exit 1
	fi

jax: setup
	@if $(VENV_PYTHON) -c 'import flax, jax, optax' 2>/dev/null; then exit 0; fi
	base=$$($(VENV_PYTHON) -c 'import sys; print(sys._base_executable)')
	$(INDEX_OF_PIP)
	$(CONSTRAINTS)
	.venv/bin/uv pip install --quiet --python $(VENV_PYTHON) --constraints .venv/constraints \
	    --group jax

# At the version of PyTorch that is there: torchvision asks for one, and would replace it.
gallery: torch jax
	@if $(VENV_PYTHON) -c 'import torchvision, transformers' 2>/dev/null; then exit 0; fi
	base=$$($(VENV_PYTHON) -c 'import sys; print(sys._base_executable)')
	$(INDEX_OF_PIP)
	$(CONSTRAINTS)
	of_torch='from importlib.metadata import version; print("torch==" + version("torch"))'
	$(VENV_PYTHON) -c "$$of_torch" | cut -d+ -f1 >>.venv/constraints
	.venv/bin/uv pip install --quiet --python $(VENV_PYTHON) --constraints .venv/constraints \
	    --group gallery

horovod: $(HOROVOD)/ready

# Horovod's last release does not compile against the TensorFlow of .venv, and there are no wheels
# of it. Its build imports the TensorFlow that it is to work with, and so comes last, without
# isolation. No cache is used: it would know a build by Horovod's version alone.
$(HOROVOD)/ready: requirements-horovod.lock | $(READY)
	@if ! command -v "$${CXX:-c++}" >/dev/null; then
	    echo "error: no C++ compiler to build Horovod with: install one (Debian, Ubuntu:" \
	        "g++), or name it in CXX" >&2
	    exit 2
	fi
	base=$$($(VENV_PYTHON) -c 'import sys; print(sys._base_executable)')
	$(INDEX_OF_PIP)
	of_horovod() { awk -v is="$$1" '/^[^ #]/ { keep = (index($$0, "horovod==") == 1) == is } keep'; }
	install() {
	    .venv/bin/uv pip install --quiet --python $(HOROVOD)/bin/python --require-hashes "$$@"
	}
	rm -rf $(HOROVOD)
	.venv/bin/uv venv --quiet --python "$$base" $(HOROVOD)
	of_horovod 0 <$< >$(HOROVOD)/others.lock
	of_horovod 1 <$< >$(HOROVOD)/horovod.lock
	echo "making $(HOROVOD); then Horovod is compiled, which takes some minutes"
	install --build-constraints $(HOROVOD)/others.lock -r $(HOROVOD)/others.lock
	export PATH="$$PWD/$(HOROVOD)/bin:$$PATH" MAKEFLAGS=-j$(HOROVOD_JOBS)
	export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
	export HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_WITHOUT_MPI=1
	if ! nice -n 19 .venv/bin/uv pip install --verbose --python $(HOROVOD)/bin/python \
	    --require-hashes --no-build-isolation --no-cache --no-deps \
	    -r $(HOROVOD)/horovod.lock >$(HOROVOD)/build.log 2>&1; then
	    echo "error: Horovod cannot be built: see $(HOROVOD)/build.log" >&2
	    exit 1
	fi
	touch $@

horovod-test: horovod
	@PARITY_REQUIRE_HOROVOD=1 $(VENV_PYTHON) -m pytest $(IN_WORKERS) -m horovod \
	    tests/test_strategies.py tests/test_strategies_horovod.py tests/test_two_hosts.py \
	    tests/test_signal_schedules.py tests/test_processes_lost.py \
	    tests/test_processes_strangers.py $(PYTEST_FLAGS)

gpu: $(GPU)/ready

# Paddle's build for GPUs brings neither CUDA 11.8 nor cuDNN 8: it opens them by names without a
# version, first beside its own libraries. TensorFlow's CUDA 12 has files of the same names, so each
# gets a folder of its own. Both kinds of Paddle own the same files: only one may be installed.
$(GPU)/ready: requirements.lock deploy/requirements-gpu.lock deploy/requirements-cuda11.lock | $(READY)
	@base=$$($(VENV_PYTHON) -c 'import sys; print(sys._base_executable)')
	uv=.venv/bin/uv
	$(INDEX_OF_PIP)
	install() { "$$uv" pip install --quiet --python $(GPU)/bin/python --require-hashes "$$@"; }
	rm -rf $(GPU)
	echo "making $(GPU); the first time about 5 GB are downloaded"
	"$$uv" venv --quiet --python "$$base" $(GPU)
	awk '/^[^ #]/ { keep = index($$0, "paddlepaddle==") != 1 } keep' requirements.lock \
	    >$(GPU)/others.lock
	install --build-constraints requirements.lock -r $(GPU)/others.lock \
	    -r deploy/requirements-gpu.lock
	install --target $(GPU)/cuda11 -r deploy/requirements-cuda11.lock
	beside=$$(echo $(GPU)/lib/python3*/site-packages/paddle/libs)
	for file in $(GPU)/cuda11/nvidia/*/lib/lib*.so.*; do
	    name=$${file##*/}
	    ln -s "$$PWD/$$file" "$$beside/$$name"
	    ln -s "$$name" "$$beside/$${name%%.so.*}.so"
	done
	touch $@

# On a machine with a GPU, what `parity run` says of each network is what nobody has seen so far: its
# report and log in out/gpu tell the rest. A proof that a run has finished is not run again.
gpu-test: gpu
	@PARITY_REQUIRE_GPU_PACKAGES=1 $(VENV_PYTHON) -m pytest -m gpu tests/test_gpu.py $(PYTEST_FLAGS)
	$(GPU)/bin/python -m parity doctor
	if ! $(GPU)/bin/python -m parity doctor | grep -q '^GPU: a driver .*devices: [1-9]'; then exit 0; fi
	mkdir -p out/gpu
	status=0
	chosen=
	if $(GPU)/bin/python -m parity doctor | grep -q 'no code for'; then chosen=--frameworks=tensorflow; fi
	for network in $(NETWORKS); do
	    out=out/gpu/$$network
	    if [ -f $$out/report.json ]; then continue; fi
	    $(GPU)/bin/python -m parity run --device gpu --network $$network --out $$out \
	        $$chosen $(PARITY_FLAGS) 2>&1 | tee $$out.log || status=$$?
	done
	exit $$status

# Only the user's default index is read: local folders and extra indexes may hold other files
# under the same names, and their hashes must not get into the lock.
lock:
	@if [ ! -f requirements.lock ]; then uv=uv; else uv=.venv/bin/uv; fi
	if ! "$$uv" --version >/dev/null 2>&1; then
	    echo "error: no $$uv to write the lock with: run make setup first" >&2
	    exit 2
	fi
	compile() {
	    env -u UV_FIND_LINKS -u UV_EXTRA_INDEX_URL -u UV_INDEX \
	        "$$uv" pip compile --universal --python-version 3.10 --generate-hashes \
	        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	        --quiet $(LOCK_FLAGS) "$$@"
	}
	compile --extra train --group dev --group docs pyproject.toml -o requirements.lock
	compile --group horovod -o requirements-horovod.lock
	# What GPUs need besides.
	compile --group cuda11 -o deploy/requirements-cuda11.lock
	locked=$$(sed -n 's/^\([a-zA-Z0-9._-]*\)==.*/--no-emit-package \1/p' requirements.lock)
	compile --extra gpu --constraint requirements.lock $$locked pyproject.toml \
	    -o deploy/requirements-gpu.lock

# The build leaves folders of its own beside what it builds from; `make clean` removes them.
wheel: setup
	@$(VENV_PYTHON) -m build --no-isolation --outdir out/dist

clean:
	@rm -rf .venv .venv-horovod .venv-gpu out build training_parity.egg-info
