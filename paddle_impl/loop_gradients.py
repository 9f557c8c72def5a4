"""Takes sums out of the gradient of a loop over time, in a program that is complete.

The framework's gradient of a loop computes, at every step, the gradient of everything from
outside that the step reads, and adds it to the sum so far. For a weight that is a thin product
and a pass over a matrix as large as the weight; for a sequence of which each step reads its own
values, a pass over all steps' values, so that the time grows with the square of the length.
Here a step keeps the factors, or the values, in an array, and the sum is taken once, after the
loop: a single product for a weight or a memory, the array itself for a sequence.
"""

from dataclasses import dataclass

from paddle.base import core

_GRADIENT = "@GRAD"
_NONE = "@EMPTY@"
_KEPT = "Kept"  # an output that the engine does not know, so that readers wait for the loop
_ROLES = core.op_proto_and_checker_maker


@dataclass(frozen=True)
class _Sum:
    """What a loop's gradient adds up over its steps.

    Attributes:
      variable: the name of what the steps read from outside.
      total: the name of its gradient.
      operation: the operation of a step that computes the step's share.
    """

    variable: str
    total: str
    operation: object


def take_sums_out_of_loops(program):
    """Take the sums over time that can be taken after a loop out of each loop's gradient.

    Args:
      program: with its gradients; changed in place.
    """
    block = program.global_block()
    for loop in [operation for operation in block.ops if operation.type == "while_grad"]:
        _take_out(program, block, loop)


def _take_out(program, block, loop):
    step = program.block(loop.attr("sub_block").id)
    counter = _counter(step)
    if counter is None:
        return
    kept = _Kept(block, step, counter, loop.input("StepScopes")[0])
    after = []
    for found in _sums(step, loop):
        make = _MAKERS.get(found.operation.type)
        made = make(kept, found) if make else None
        if made:
            after.append((found, made))
    if not after:
        return
    taken = {found.total for found, _ in after}
    left = [_NONE if name in taken else name for name in loop.output(f"X{_GRADIENT}")]
    loop.desc.set_output(f"X{_GRADIENT}", left)
    loop.desc.set_output(_KEPT, kept.arrays())
    _insert_after(block, loop, kept.joins() + [each for _, each in after])


def _counter(step):
    """Return the name of the loop's counter, which its gradient counts down again."""
    names = [op.input("X")[0] for op in step.ops if op.type == "increment"]
    return names[0] if len(names) == 1 else None


def _sums(step, loop):
    """Return what a loop adds up over its steps, as far as one operation computes the share."""
    found = []
    for variable, total in totals(loop).items():
        share = f"{variable}{_GRADIENT}"
        makers = [op for op in step.ops if share in op.output_arg_names]
        if len(makers) == 1:
            found.append(_Sum(variable, total, makers[0]))
    return found


def totals(loop):
    """Return variable -> its gradient, by name, for what a loop adds up over its steps."""
    pairs = zip(loop.input("X"), loop.output(f"X{_GRADIENT}"), strict=True)
    return {variable: total for variable, total in pairs if total != _NONE}


class _Kept:
    """The arrays in which the steps of a loop's gradient keep what is needed after it.

    Attributes:
      counter: the name of the variable that counts the steps.

    Args:
      block: the block that contains the loop.
      step: the block of one step of the gradient.
      counter: the name of the variable that counts the steps.
      name: a name that no other loop has.
    """

    def __init__(self, block, step, counter, name):
        self._block, self._step, self._name = block, step, name
        self.counter = counter
        self._joined = {}  # (name, axis) -> the name of the array, and of the whole

    def join(self, name, operation, axis):
        """Keep a variable of a step; return the name of all steps' values, side by side.

        Args:
          name: the name of the variable.
          operation: the operation of the step that reads it.
          axis: the axis along which the steps' values are joined, 0 or 1.
        """
        if (name, axis) not in self._joined:
            of_step = self._step._find_var_recursive(name)
            base = f"{name}/{self._name}/{axis}"
            array = self._block.create_var(
                name=f"{base}/array",
                type=core.VarDesc.VarType.LOD_TENSOR_ARRAY,
                dtype=of_step.dtype,
            )
            shape = [-1 if place == axis else size for place, size in enumerate(of_step.shape)]
            whole = self._block.create_var(name=base, dtype=of_step.dtype, shape=shape)
            # The array itself, not its name, which a step's block does not know.
            self._step._insert_op(
                self._step.ops.index(operation),
                type="write_to_array",
                inputs={"X": [name], "I": [self.counter]},
                outputs={"Out": [array]},
                attrs=role_of(operation),
            )
            self._joined[name, axis] = array.name, whole.name
        return self._joined[name, axis][1]

    def shape(self, name):
        """Return the shape of a variable that a step reads; -1 where it is not known."""
        return tuple(self._step._find_var_recursive(name).shape)

    def arrays(self):
        """Return the names of the arrays."""
        return [array for array, _ in self._joined.values()]

    def joins(self):
        """Return the operations that join the steps' values, to come after the loop."""
        return [self._join(*names, axis) for (_, axis), names in self._joined.items()]

    def _join(self, array, whole, axis):
        sizes = self._block.create_var(name=f"{whole}/sizes", dtype="int32", shape=[-1])
        return (
            "tensor_array_to_tensor",
            {"X": [array]},
            {"Out": [whole], "OutIndex": [sizes.name]},
            {"axis": axis, "use_stack": False},
        )

    def drop(self, operation):
        """Remove an operation of a step."""
        self._step._remove_op(self._step.ops.index(operation))


def _of_product(kept, found):
    """Return the product that replaces the sum of a matrix's gradients over the steps."""
    operation = found.operation
    (rows,), (matrix,) = operation.input("X"), operation.input("Y")
    ranks = len(kept.shape(rows)), len(kept.shape(matrix))
    if matrix != found.variable or operation.attr("trans_x") or ranks not in ((2, 2), (3, 3)):
        return None
    # The gradient of a single column is as small as its rows are large, which would be kept.
    if ranks == (2, 2) and kept.shape(matrix)[1] == 1:
        return None
    axis = ranks[0] - 2
    (of_product,) = operation.input(f"Out{_GRADIENT}")
    factors = [kept.join(name, operation, axis) for name in (rows, of_product)]
    if operation.attr("trans_y"):
        factors.reverse()
    operation.desc.set_output(f"Y{_GRADIENT}", [])
    return (
        "matmul_v2",
        {"X": [factors[0]], "Y": [factors[1]]},
        {"Out": [found.total]},
        {"trans_x": True, "trans_y": False},
    )


def _of_bias(kept, found):
    """Return the sum over all steps' rows that replaces a bias's sum over the steps."""
    operation = found.operation
    if operation.input("Y")[0] != found.variable or len(kept.shape(found.variable)) != 1:
        return None
    (of_rows,) = operation.input(f"Out{_GRADIENT}")
    if len(kept.shape(of_rows)) != 2:
        return None
    rows = kept.join(of_rows, operation, 0)
    operation.desc.set_output(f"Y{_GRADIENT}", [])
    if not operation.output_arg_names:
        kept.drop(operation)
    sizes = {"dim": [0], "keep_dim": False, "reduce_all": False}
    return "reduce_sum", {"X": [rows]}, {"Out": [found.total]}, sizes


def _of_sequence(kept, found):
    """Return the copy that replaces the sum over the steps of what each has of a sequence."""
    operation = found.operation
    if operation.input("Index")[0] != kept.counter:
        return None
    (of_step,) = operation.input(f"Out{_GRADIENT}")
    steps = kept.join(of_step, operation, 0)
    kept.drop(operation)
    return "assign", {"X": [steps]}, {"Out": [found.total]}, {}


_MAKERS = {
    "matmul_v2_grad": _of_product,
    "elementwise_add_grad": _of_bias,
    "gather_grad": _of_sequence,
}


def _insert_after(block, loop, operations):
    """Insert operations after a loop's gradient, and tell the engine who computes what."""
    role, pairs = role_of(loop), _gradient_pairs(loop)
    index = block.ops.index(loop) + 1
    made = set()
    for place, (kind, inputs, outputs, attributes) in enumerate(operations):
        named = {name for names in outputs.values() for name in names}
        own = {parameter: total for parameter, total in pairs.items() if total in named}
        made |= set(own)
        if own:
            attributes = attributes | {_ROLES.kOpRoleVarAttrName(): _flat(own)}
        block._insert_op(
            index + place, type=kind, inputs=inputs, outputs=outputs, attrs=attributes | role
        )
    if made:
        left = {name: total for name, total in pairs.items() if name not in made}
        loop._remove_attr(_ROLES.kOpRoleVarAttrName())
        if left:
            loop._set_attr(_ROLES.kOpRoleVarAttrName(), _flat(left))


def _gradient_pairs(operation):
    """Return parameter -> gradient for the parameters whose gradient an operation completes."""
    name = _ROLES.kOpRoleVarAttrName()
    names = operation.attr(name) if operation.has_attr(name) else []
    return dict(zip(names[::2], names[1::2], strict=True))


def _flat(pairs):
    return [name for pair in pairs.items() for name in pair]


def role_of(operation):
    """Return the attribute by which the engine knows forward, backward and update."""
    name = _ROLES.kOpRoleAttrName()
    return {name: operation.attr(name)}
