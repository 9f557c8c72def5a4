"""Shortens the steps of loops over time, in a program that is complete.

An operation takes time however little it computes, since the engine looks up its variables anew
at every step. So what only copies is left out here, and what nobody reads.
"""

from paddle_impl.loop_gradients import totals

_GRADIENT = "@GRAD"


def shorten_steps(program):
    """Take copies, and gradients that nobody reads, out of the steps of each loop.

    Args:
      program: with its gradients, if it has any; changed in place.
    """
    for loop in [each for each in program.global_block().ops if each.type == "while"]:
        _write_without_copy(program.block(loop.attr("sub_block").id))
    for loop in [each for each in program.global_block().ops if each.type == "while_grad"]:
        step = program.block(loop.attr("sub_block").id)
        if any(each.has_attr("sub_block") for each in step.ops):
            continue  # what a loop or a branch within the step reads is not known here
        added_up = {f"{name}{_GRADIENT}" for name in totals(loop)}
        _hand_on_gradients_of_sums(step, added_up)
        _drop_unread(step, added_up)


def _write_without_copy(step):
    """Write to arrays what was to be copied for them."""
    for copy in [each for each in step.ops if each.type == "assign"]:
        (value,), (made,) = copy.input("X"), copy.output("Out")
        operations = (each for block in step.program.blocks for each in block.ops)
        readers = [each for each in operations if made in each.input_arg_names]
        if readers and all(each.type == "write_to_array" for each in readers):
            for each in readers:
                each._rename_input(made, value)
            step._remove_op(step.ops.index(copy))


def _hand_on_gradients_of_sums(step, added_up):
    """Replace the gradient of a term by that of its sum, where both have one shape.

    Sizes that are known only at run time are those of batch and time, which no step broadcasts.
    """
    for addition in [each for each in step.ops if each.type == "elementwise_add_grad"]:
        place, (of_sum,) = step.ops.index(addition), addition.input(f"Out{_GRADIENT}")
        shape = _shape(step, of_sum.removesuffix(_GRADIENT))
        for term in "XY":
            (name,), handed = addition.input(term), addition.output(f"{term}{_GRADIENT}")
            if handed and handed[0] not in added_up and _shape(step, name) == shape:
                for later in step.ops[place + 1 :]:
                    later._rename_input(handed[0], of_sum)
                addition.desc.set_output(f"{term}{_GRADIENT}", [])
        if not addition.output_arg_names:
            step._remove_op(place)


def _drop_unread(step, added_up):
    """Drop gradients that no operation of the step reads, and the loop does not add up."""
    read = set(added_up)
    for operation in reversed(list(step.ops)):
        for kind in operation.output_names:
            names = operation.output(kind)
            if not any(name in read or not step.has_var(name) for name in names):
                operation.desc.set_output(kind, [])
        if operation.output_arg_names:
            read |= set(operation.input_arg_names)
        else:
            step._remove_op(step.ops.index(operation))


def _shape(step, name):
    return step._find_var_recursive(name).shape
