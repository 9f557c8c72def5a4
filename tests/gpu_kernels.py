"""Tells which operations of a training's graphs a GPU could not run: a script of `test_gpu.py`.

`python tests/gpu_kernels.py FRAMEWORK FLAGS ...` trains on processors, with the graphs that
GPUs would get, and prints a line of JSON: [the number of kinds of operations, {precision: the
kinds that have a kernel for it on processors, but none on GPUs}].
"""

import json
import runpy
import sys
from contextlib import redirect_stdout, suppress

# Paddle's two registries write a precision differently.
SPELT = {"float32": ("float32", "[float]"), "float64": ("float64", "[double]")}


def _made(kind) -> list:
    """Return the list of the objects of a class that will be made."""
    objects, start = [], kind.__init__

    def started(self, *values, **named):
        start(self, *values, **named)
        objects.append(self)

    kind.__init__ = started
    return objects


def paddle(train) -> tuple[set, dict]:
    """Return the kinds of operations, and {kind: [what its kernels are for]}."""
    from paddle_impl.engine import load_engine

    framework = load_engine(1)
    from paddle.base import core

    from paddle_impl.strategies import synchronous_base

    replace = synchronous_base.replace_operations
    synchronous_base.replace_operations = lambda program, dtype, *, on_cpu: replace(
        program, dtype, on_cpu=False
    )
    programs = _made(framework.static.Program)
    train()
    kinds = {each.type for program in programs for b in program.blocks for each in b.ops}
    known = core._get_registered_phi_kernels("all") | core._get_all_register_op_kernels("all")
    return kinds, {kind: known[kind] for kind in kinds if kind in known}


def tensorflow(train) -> tuple[set, dict]:
    """Return the same; a kernel for any device is one on a GPU, too."""
    from tf_impl.engine import load_engine

    load_engine(1)
    import tensorflow as tf
    from tensorflow.python.framework import dtypes, kernels

    graphs = _made(tf.Graph)
    train()
    kinds = {each.type for graph in graphs for each in graph.get_operations()}
    for graph in graphs:
        functions = graph.as_graph_def().library.function
        kinds |= {node.op for function in functions for node in function.node_def}

    devices = {"CPU": "CPU", "GPU": "GPU", "DEFAULT": "CPU GPU"}

    def told(kernel):
        types = [
            {dtypes.as_dtype(each).name for each in constraint.allowed_values.list.type}
            for constraint in kernel.constraint
            if constraint.name in ("T", "dtype")
        ]
        every = set.intersection(*types) if types else {"float32", "float64"}
        return f"{devices[kernel.device_type]} {sorted(every)}"

    return kinds, {
        kind: [
            told(each)
            for each in kernels.get_registered_kernels_for_op(kind).kernel
            if each.device_type in devices
        ]
        for kind in kinds
        if not kind.startswith("__")  # a function of the graph's own
    }


def main() -> None:
    """See the top of this module."""
    _, framework, *flags = sys.argv
    folder = {"paddle": "paddle_impl", "tensorflow": "tf_impl"}[framework]
    sys.argv = [f"{folder}/train.py", *flags]

    def train():
        with suppress(SystemExit), redirect_stdout(sys.stderr):
            runpy.run_path(sys.argv[0], run_name="__main__")

    kinds, known = globals()[framework](train)
    print(json.dumps([len(kinds), {dtype: _lacking(known, dtype) for dtype in SPELT}]))


def _lacking(known: dict, dtype: str) -> list[str]:
    """Return the kinds with a kernel for a precision on processors, and none on a GPU."""

    def runs(kernels, device):
        return any(
            device in each.upper() and any(name in each for name in SPELT[dtype])
            for each in kernels
        )

    return sorted(
        kind for kind, each in known.items() if runs(each, "CPU") and not runs(each, "GPU")
    )


if __name__ == "__main__":
    main()
