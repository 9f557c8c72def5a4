"""Prepares what the steps of a loop over time read from outside, in a program that is complete.

The framework's loop copies every tensor from outside into each step, because a step might
overwrite it, and keeps all copies for the way back; a loop made by `layers.loop_over_time`
overwrites none. And its MKL multiplies few rows by a transposed matrix much more slowly than by
one that lies the other way round: on one core and with 10 rows 0.37 ms in place of 0.19 at
[650, 2600], 4.6 in place of 1.3 at [1500, 6000]. A loop reads the same matrix at every step, so
it is transposed once, before.
"""

from paddle.base import core

_GRADIENT = "@GRAD"
_COPIES = "Transposed"  # an input that the engine does not know, so that the loop waits for it
_ROLE = core.op_proto_and_checker_maker.kOpRoleAttrName()


def read_in_fast_layout(program):
    """Let each loop read matrices in the layout in which it multiplies faster.

    Args:
      program: with its gradients, if it has any; changed in place.
    """
    block = program.global_block()
    for loop in [each for each in block.ops if each.type in ("while", "while_grad")]:
        transposed = {}  # the name of a matrix -> of its transposed copy
        for operation in list(program.block(loop.attr("sub_block").id).ops):
            if operation.type == "matmul_v2" and loop.type == "while":
                _read_transposed(block, loop, operation, transposed)
            elif operation.type == "matmul_v2_grad" and loop.type == "while_grad":
                _hand_back_transposed(block, loop, operation, transposed)


def read_in_place(program):
    """Let each loop read tensors from outside without a copy for every step.

    Args:
      program: complete, and never to be cloned again; changed in place.
    """
    block = program.global_block()
    for loop in [each for each in block.ops if each.type == "while"]:
        for name in set(loop.input("X")) - set(loop.output("Out")):
            variable = block.var(name)
            if variable.type == core.VarDesc.VarType.LOD_TENSOR:
                # The engine copies all but parameters.
                variable.desc.set_is_parameter(True)


def _read_transposed(block, loop, operation, transposed):
    """Multiply by a copy that is transposed already."""
    (matrix,) = operation.input("Y")
    if operation.attr("trans_y") and _is_outer_matrix(loop, block, matrix):
        operation._rename_input(matrix, _transposed(block, loop, matrix, transposed))
        operation._set_attr("trans_y", False)


def _hand_back_transposed(block, loop, operation, transposed):
    """Take the rows' gradient alone as a plain product with a transposed copy of the matrix."""
    (matrix,) = operation.input("Y")
    plain = not (operation.attr("trans_x") or operation.attr("trans_y"))
    alone = not operation.output(f"Y{_GRADIENT}") and operation.output(f"X{_GRADIENT}")
    if not (plain and alone and _is_outer_matrix(loop, block, matrix)):
        return
    step = operation.block
    place, role = step.ops.index(operation), {_ROLE: operation.attr(_ROLE)}
    copy = _transposed(block, loop, matrix, transposed)
    (of_product,), of_rows = operation.input(f"Out{_GRADIENT}"), alone
    step._remove_op(place)
    step._insert_op(
        place,
        type="matmul_v2",
        inputs={"X": [of_product], "Y": [block.var(copy)]},
        outputs={"Out": of_rows},
        attrs={"trans_x": False, "trans_y": False} | role,
    )


def _is_outer_matrix(loop, block, name):
    """Return whether a loop reads a matrix of more than one column, and never writes it."""
    if name not in loop.input("X") or name in loop.output_arg_names:
        return False
    shape = block.var(name).shape
    return len(shape) == 2 and min(shape) > 1


def _transposed(block, loop, name, transposed):
    """Return the name of a matrix's transposed copy, which is made before the loop."""
    if name not in transposed:
        matrix = block.var(name)
        base = f"{name}/{loop.type}/transposed/{block.ops.index(loop)}"
        copy, shape = (
            block.create_var(name=each, dtype=matrix.dtype, shape=sizes, stop_gradient=True)
            for each, sizes in (
                (base, matrix.shape[::-1]),
                (f"{base}/shape", [0, *matrix.shape]),
            )
        )
        block._insert_op(
            block.ops.index(loop),
            type="transpose2",
            inputs={"X": [name]},
            outputs={"Out": [copy.name], "XShape": [shape.name]},
            attrs={"axis": [1, 0], _ROLE: loop.attr(_ROLE)},
        )
        transposed[name] = copy.name
        loop.desc.set_input(_COPIES, list(transposed.values()))
    return transposed[name]
