"""What Paddle's fast kernels take out of the gradient of a loop over time."""

import numpy as np
import pytest

from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.training.strategy import Build


@pytest.mark.parametrize("kind", ["scaled", "bahdanau"])
def test_loop_adds_up_no_weight_no_memory_and_no_sequence(frameworks, kind):
    left, counts = frameworks["paddle"].call(_left_in_loop, kind)
    assert counts, "there is a loop that computes gradients"
    # The score kernel has one column; the keys of its kind are in no product.
    allowed = {"scaled": 0, "bahdanau": 2}[kind]
    assert len(left) == allowed, left


def test_steps_multiply_by_matrices_that_lie_the_fast_way_and_are_not_copied(frameworks):
    transposed, copied, loops = frameworks["paddle"].call(_slow_reads)
    assert loops == ["while", "while_grad"]
    assert not transposed
    assert not copied


@pytest.mark.parametrize(("cell", "kind"), [("lstm", "scaled"), ("gru", "bahdanau")])
def test_steps_neither_copy_for_arrays_nor_compute_what_is_not_read(frameworks, cell, kind):
    copies, sums, unread, steps = frameworks["paddle"].call(_idle_operations, cell, kind)
    assert steps == ["while", "while_grad"]
    assert not copies
    assert not sums
    assert not unread


def test_a_loop_within_a_step_gets_its_gradient(frameworks):
    plain, fast = frameworks["paddle"].call(_gradients_of_nested_loops)
    np.testing.assert_array_equal(fast, plain)


# What follows runs in a process of the framework.


def _spec(cell: str, kind: str) -> Spec:
    model = Seq2seqSpec(
        source_vocabulary_size=9,
        target_vocabulary_size=8,
        embedding_size=3,
        hidden_size=4,
        num_layers=2,
        cell=cell,
        attention=kind,
        input_feeding=True,
        keep=0.8,
        initial_scale=0.5,
    )
    return Spec("seq2seq", model, PairText(), TrainSpec(dtype="float64", optimizer="sgd"))


def _make(spec: Spec, kernels: str, replicas: int, strategy: str | None = None):
    entry = FRAMEWORKS["paddle"].strategies
    settings = entry.settings(strategy or "parallel-executor", Build().settings)
    build = Build(replicas, kernels=kernels, settings=settings)
    return entry.make(strategy, spec, build)


def _programs(cell: str, kind: str) -> list:
    """Return the programs of the fast kernels, complete."""
    import paddle_impl.strategies.parallel_executor as module

    programs, original = [], module.ParallelExecutor

    class Seen(original):
        def __init__(self, program, *arguments, **named):
            programs.append(program)
            super().__init__(program, *arguments, **named)

    module.ParallelExecutor = Seen
    try:
        _make(_spec(cell, kind), "fast", replicas=1)
    finally:
        module.ParallelExecutor = original
    return programs


def _left_in_loop(kind: str) -> tuple[list[str], list[int]]:
    """Return what loops still add up, and how many arrays each keeps."""
    from paddle.base.core import VarDesc

    left, counts = [], []
    for program in _programs("gru", kind):
        block = program.global_block()
        for op in block.ops:
            if op.type == "while_grad":
                totals = zip(op.input("X"), op.output("X@GRAD"), strict=True)
                left += [
                    name
                    for name, total in totals
                    if total != "@EMPTY@"
                    and block.var(name).type != VarDesc.VarType.LOD_TENSOR_ARRAY
                ]
                counts.append(len(op.output("Kept")))
    return left, counts


def _slow_reads() -> tuple[list[str], list[str], list[str]]:
    """Return what steps multiply by the slow way, what loops copy, and the training's loops."""
    program = max(_programs("lstm", "bahdanau"), key=lambda each: each.num_blocks)
    transposed, copied, loops = found = ([], [], [])
    block = program.global_block()

    def is_matrix(name: str) -> bool:
        shape = block.var(name).shape if block.has_var(name) else ()
        return len(shape) == 2 and min(shape) > 1

    for loop in block.ops:
        if loop.type not in ("while", "while_grad"):
            continue
        loops.append(loop.type)
        for op in program.block(loop.attr("sub_block").id).ops:
            backward = {"matmul_v2": False, "matmul_v2_grad": True}.get(op.type)
            # the rows' gradient is a product with the matrix the other way round
            if backward is not None and op.attr("trans_y") != backward:
                transposed += [name for name in op.input("Y") if is_matrix(name)]
        if loop.type == "while":
            read = [block.var(name) for name in set(loop.input("X")) - set(loop.output("Out"))]
            copied += [each.name for each in read if not each.desc.is_parameter()]
    return found


def _idle_operations(cell: str, kind: str) -> tuple[list[str], ...]:
    """Return copies made for arrays, gradients equal to a sum's, unread ones, and the loops."""
    program = max(_programs(cell, kind), key=lambda each: each.num_blocks)
    copies, sums, unread, loops = found = ([], [], [], [])
    operations = [op for block in program.blocks for op in block.ops]
    read = {name for op in operations for name in op.input_arg_names}
    for loop in program.global_block().ops:
        if loop.type not in ("while", "while_grad"):
            continue
        loops.append(loop.type)
        step = program.block(loop.attr("sub_block").id)
        copied = {name for op in step.ops if op.type == "assign" for name in op.output("Out")}
        for op in step.ops:
            if op.type == "write_to_array":
                copies += copied.intersection(op.input("X"))
            if op.type == "elementwise_add_grad":
                terms = [step._find_var_recursive(op.input(term)[0]) for term in "XY"]
                if terms[0].shape == terms[1].shape:
                    sums += read.intersection(op.output_arg_names)
        if loop.type == "while_grad":
            totals = zip(loop.input("X"), loop.output("X@GRAD"), strict=True)
            used = read | {f"{name}@GRAD" for name, total in totals if total != "@EMPTY@"}
            made = {name for op in step.ops for name in op.output_arg_names}
            unread += [name for name in made - used if step.has_var(name)]
    return found


def _gradients_of_nested_loops() -> list[list]:
    """Return the gradient of a loop's input, before and after the program is rewritten."""
    import paddle

    from paddle_impl.layers import loop_over_time
    from paddle_impl.program_kernels import replace_operations

    def step(now, state):
        total = now[0] + state
        _, power = paddle.static.nn.while_loop(
            lambda count, power: count < 2,
            lambda count, power: [count + 1, power * total],
            [paddle.zeros([1], "int64"), now[0] * 1.0],
        )
        after = power + total
        return after, [after]

    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        inputs = paddle.static.data("inputs", [4, 2, 3], "float64")
        inputs.stop_gradient = False
        (outputs,), _ = loop_over_time(step, [inputs], paddle.zeros([2, 3], "float64"), [3])
        loss = paddle.sum(outputs * outputs)
        paddle.static.append_backward(loss, parameter_list=[inputs])
    fast = program.clone()
    replace_operations(fast, "float64", on_cpu=True)
    executor = paddle.static.Executor(paddle.CPUPlace())
    given = {"inputs": np.linspace(-1, 1, 24).reshape(4, 2, 3)}
    return [
        executor.run(each, feed=given, fetch_list=["inputs@GRAD"])[0].tolist()
        for each in (program, fast)
    ]
