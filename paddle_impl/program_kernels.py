"""Faster operations in place of slow ones, put into a program that is complete.

They belong to the fast kernels of `kernels.py`, but replace operations that have no function in
`layers.py`, or a gradient that the framework has appended. What a program computes stays the
same, but for rounding. Milliseconds on one core for 1,120 rows and a vocabulary of 10,000
(float32), before and after: softmax and cross entropy 30 to 99, then 17; adding a bias 11, then
4; its gradient 17, then 2. A product of [1120, 200] and [200, 10000] takes 45 there. Adam's
update of 25 million numbers takes 69 with AVX2, then 38.
"""

import os

from paddle.base import core

from paddle_impl.loop_gradients import role_of, take_sums_out_of_loops
from paddle_impl.loop_reads import read_in_fast_layout
from paddle_impl.loop_steps import shorten_steps
from parity.base.machine import processor_facts

# A smaller probability is raised to this, so that its logarithm is finite; what such a loss
# lacks is added in layers.token_cross_entropy.
_LEAST_PROBABILITY = 1e-30

_RATES_OF_ADAM = ("beta1", "beta2", "epsilon")
_STATE_OF_ADAM = ("Moment1", "Moment2", "Beta1Pow", "Beta2Pow")
_READ_BY_ADAM = ("Param", "Grad", "LearningRate", *_STATE_OF_ADAM)


def replace_operations(program, dtype, *, on_cpu):
    """Replace operations of a program; on CPUs, oneDNN runs those that it runs faster.

    Args:
      program: with its gradients and updates, if it has any; changed in place.
      dtype: "float32" or "float64"; oneDNN has no operations for the latter.
      on_cpu: whether CPUs run it; elsewhere there is no oneDNN.
    """
    shorten_steps(program)
    take_sums_out_of_loops(program)
    read_in_fast_layout(program)
    block = program.global_block()
    for index in reversed(range(len(block.ops))):
        operation = block.ops[index]
        if operation.type == "softmax_with_cross_entropy":
            _split_cross_entropy(block, index, operation)
        elif operation.type == "elementwise_add_grad" and _adds_bias(block, operation):
            _sum_bias_gradient(block, index, operation)
    if dtype != "float32" or not on_cpu:
        return
    products = () if _is_of_intel() else ("matmul_v2", "matmul_v2_grad")
    if products:
        _add_biases_in_products(block)
    else:
        _add_biases_in_place(block)
    for operation in block.ops:
        by_rows = operation.type in products and _ranks(block, operation) == (2, 2)
        # without one of its two gradients, oneDNN's ends by SIGSEGV
        by_rows = by_rows and all(operation.output(each) for each in operation.output_names)
        # of rank 3, a product's gradient is several times slower than the plain one
        bias = operation.type == "elementwise_add" and _adds_bias(block, operation)
        softmax = operation.type == "softmax" and _ranks(block, operation) == (2,)
        if by_rows or bias or softmax:
            operation._set_attr("use_mkldnn", True)
        if softmax:
            # or it goes through the probabilities once more to keep them above exp(-64)
            operation._set_attr("is_test", True)
    if os.environ["OMP_NUM_THREADS"] == "1" and not _has_avx512():
        _update_by_vectors(block)


def _ranks(block, operation):
    names = [name for name in ("X", "Y") if name in operation.input_names]
    return tuple(len(block.var(operation.input(name)[0]).shape) for name in names)


def _adds_bias(block, operation):
    """Return whether an operation adds one row to all rows, or is the gradient of that."""
    return _ranks(block, operation) == (2, 1)


def _biases_of_products(block):
    """Return each addition of a bias to a product that nothing else reads, and that product."""
    found = []
    every = [operation for each in block.program.blocks for operation in each.ops]
    for addition in block.ops:
        if addition.type != "elementwise_add" or not _adds_bias(block, addition):
            continue
        without = addition.input("X")[0]
        readers = [each for each in every if without in each.input_arg_names]
        product = next((each for each in block.ops if without in each.output_arg_names), None)
        if len(readers) == 1 and product is not None and product.type == "matmul_v2":
            found.append((addition, product))
    return found


def _add_biases_in_place(block):
    """Let biases be added where the product is, not written with it to memory of its own."""
    for addition, product in _biases_of_products(block):
        (without,), (total,) = addition.input("X"), addition.output("Out")
        product._rename_output(without, total)
        addition._rename_input(without, total)


def _add_biases_in_products(block):
    """Let oneDNN add a bias while it writes a product, in place of going through it again.

    Its `fc` is made for that, but keeps a copy of the first matrix that it is given.
    """
    for addition, product in _biases_of_products(block):
        index = block.ops.index(addition)
        bias, total = block.var(addition.input("Y")[0]), addition.output("Out")[0]
        shape, role = [1, *bias.shape], role_of(addition)
        row = block.create_var(name=f"{total}/bias", dtype=bias.dtype, shape=shape)
        factors = {name: product.input(name) for name in ("X", "Y")}
        transposed = {name: product.attr(name) for name in ("trans_x", "trans_y")}
        block._remove_op(index)
        block._insert_op(
            index,
            type="reshape2",
            inputs={"X": [bias.name]},
            outputs={"Out": [row.name], "XShape": [_shape_of(block, row).name]},
            attrs={"shape": shape} | role,
        )
        made = block._insert_op(
            index + 1,
            type="fused_matmul",
            inputs=factors | {"ResidualData": [row.name]},
            outputs={"Out": [total]},
            attrs=transposed | role,
        )
        # its definition lacks the attribute, without which `True` would be kept as a number
        made.desc._set_bool_attr("use_mkldnn", True)
        block._remove_op(block.ops.index(product))


def _is_of_intel():
    """Return whether the processor's vendor is the one that made MKL.

    On two cores at once MKL takes 55 ms on each for the gradient of [512, 10000] from 640 rows,
    oneDNN 68; for that of [1500, 10000] from 350 rows 70 and 89. The product of 450 rows and
    the former takes 35 and 36, its bias included; that of 350 and the latter 82 and 109.
    """
    return any(fact.endswith("GenuineIntel") for fact in processor_facts())


def _has_avx512():
    return any("avx512f" in fact.split() for fact in processor_facts())


def _update_by_vectors(block):
    """Let Adam's updates compute with vectors.

    `adam` does so by AVX-512 alone, and otherwise with one number after another, on as many
    threads as there are; `merged_adam`, made for many parameters at once, on a single one.
    """
    for index, update in enumerate(block.ops):
        if update.type != "adam":
            continue
        block._insert_op(
            index,
            type="merged_adam",
            inputs={name: update.input(name) for name in _READ_BY_ADAM},
            outputs={name: update.output(name) for name in update.output_names},
            attrs={name: update.attr(name) for name in _RATES_OF_ADAM} | role_of(update),
        )
        block._remove_op(index + 1)


def _split_cross_entropy(block, index, operation):
    """Take the logarithm of the target's probability alone.

    The operation's own softmax is slow, but its gradient is not, and reads what is computed
    here.
    """
    if operation.attr("ignore_index") >= 0:
        return
    logits, targets = operation.input("Logits")[0], operation.input("Label")[0]
    _compute_again_in_branches(block, logits)
    softmax, loss = operation.output("Softmax")[0], operation.output("Loss")[0]
    kept, role = block.var(loss), role_of(operation)
    block._remove_op(index)
    of_target, held, log = (
        block.create_var(name=f"{loss}/{part}", dtype=kept.dtype, shape=kept.shape).name
        for part in ("of_target", "held", "log")
    )
    lookup = {"Input": [softmax], "Index": [targets]}
    limits = {"min": _LEAST_PROBABILITY, "max": 1.0}
    negative = {"scale": -1.0, "bias": 0.0, "bias_after_scale": True}
    for place, (kind, inputs, outputs, attributes) in enumerate(
        (
            ("softmax", {"X": [logits]}, {"Out": [softmax]}, {"axis": -1}),
            ("take_along_axis", lookup, {"Result": [of_target]}, {"Axis": 1}),
            ("clip", {"X": [of_target]}, {"Out": [held]}, limits),
            ("log", {"X": [held]}, {"Out": [log]}, {}),
            ("scale", {"X": [log]}, {"Out": [loss]}, negative),
        )
    ):
        block._insert_op(
            index + place, type=kind, inputs=inputs, outputs=outputs, attrs=attributes | role
        )


def _compute_again_in_branches(block, logits):
    """Let branches that read logits compute them anew: the softmax becomes their only reader.

    The engine then writes the probabilities where the logits were, unless these are fetched:
    2% faster with one replica at hidden 200, more with two, and up to 80 MB less at the peak.
    The branch is that of large losses, which hardly ever runs (`layers.token_cross_entropy`).
    """
    biased = {each[0].output("Out")[0]: each for each in _biases_of_products(block)}
    if logits not in biased:
        return
    addition, product = biased[logits]
    again = {each.output("Out")[0]: each for each in (product, addition)}
    outside = [n for each in again.values() for n in each.input_arg_names if n not in again]
    for branch in [each for each in block.ops if each.type == "conditional_block"]:
        if logits not in branch.input("Input"):
            continue
        within = block.program.block(branch.attr("sub_block").id)
        for place, (name, operation) in enumerate(again.items()):
            kept = block.var(name)
            within.create_var(name=_again(name), dtype=kept.dtype, shape=kept.shape)
            within._insert_op(
                place,
                type=operation.type,
                inputs={kind: operation.input(kind) for kind in operation.input_names},
                outputs={"Out": [_again(name)]},
                attrs=operation.all_attrs(),
            )
        for operation in within.ops:
            for name in again:
                operation._rename_input(name, _again(name))
        read = {*branch.input("Input"), *outside} - {logits}
        branch.desc.set_input("Input", sorted(read))


def _again(name):
    return f"{name}/again"


def _sum_bias_gradient(block, index, operation):
    """Sum a bias's gradient as a product with ones; the rows' own needs no copy."""
    rows = operation.input("Out@GRAD")[0]
    handed, summed = operation.output("X@GRAD"), operation.output("Y@GRAD")
    if not (handed and summed):
        return
    variable, role = block.var(rows), role_of(operation)
    parameter_role = core.op_proto_and_checker_maker.kOpRoleVarAttrName()
    of_parameter = {}
    if operation.has_attr(parameter_role):
        of_parameter = {parameter_role: operation.attr(parameter_role)}
    block._remove_op(index)
    for later in block.ops[index:]:
        later._rename_input(handed[0], rows)
    width = variable.shape[1]
    ones = block.create_var(name=f"{rows}/ones", dtype=variable.dtype, shape=[-1, 1])
    flat = block.create_var(name=f"{rows}/summed", dtype=variable.dtype, shape=[1, width])
    filled = {"shape": [-1, 1], "value": 1.0, "dtype": int(variable.dtype)}
    product = {"trans_x": True, "trans_y": False}
    for place, (kind, inputs, outputs, attributes) in enumerate(
        (
            (
                "fill_constant_batch_size_like",
                {"Input": [rows]},
                {"Out": [ones.name]},
                filled | {"input_dim_idx": 0, "output_dim_idx": 0},
            ),
            (
                "matmul_v2",
                {"X": [ones.name], "Y": [rows]},
                {"Out": [flat.name]},
                product,
            ),
            (
                "reshape2",
                {"X": [flat.name]},
                {"Out": summed, "XShape": [_shape_of(block, flat).name]},
                {"shape": [width]} | of_parameter,
            ),
        )
    ):
        block._insert_op(
            index + place, type=kind, inputs=inputs, outputs=outputs, attrs=attributes | role
        )


def _shape_of(block, variable):
    """Return the variable in which `reshape2` keeps the shape that was."""
    return block.create_var(
        name=f"{variable.name}/shape", dtype=variable.dtype, shape=[0, *variable.shape]
    )
