"""Cuts a program into the stages of its layers, and into the update that follows them.

A stage's program has the forward pass of its layers and then their backward pass. What it reads
of earlier stages is fed. The gradients that later stages send back arrive in the middle, where
an operation hands the stage's activations over and waits.

Import this only after `load_engine`.
"""

from dataclasses import dataclass, field

import numpy as np
import paddle
from paddle.base import core
from paddle.static.nn.common import PyFuncRegistry

from paddle_impl.executor import keep_operations

_ROLES = core.op_proto_and_checker_maker
_FORWARD, _BACKWARD, _UPDATE = range(3)
_GRADIENT = "@GRAD"


@dataclass
class Stage:
    """What one stage computes, and what it exchanges with the others, all of it in order.

    Attributes:
      operations: the indices of its operations in the whole program, the forward pass first.
      forward: how many of them are the forward pass.
      data: the names of the data that it reads.
      reads: the names of what it reads from earlier stages.
      awaits: the names of what it reads from later stages, before its backward pass.
      hands_over: the names of what other stages read from its forward pass.
      returns: the names of what other stages read from its backward pass.
      gradients: the names of the parameters' gradients that it computes.
      defines: the names of all that it computes.
    """

    operations: list[int] = field(default_factory=list)
    forward: int = 0
    data: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    awaits: list[str] = field(default_factory=list)
    hands_over: list[str] = field(default_factory=list)
    returns: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    defines: set[str] = field(default_factory=set)


def cut_stages(program, stage_of: dict[str, int], stages: int) -> list[Stage]:
    """Return the stages of a program.

    Args:
      program: the whole program, with or without a backward pass and an update.
      stage_of: name of a variable -> the stage of the layer that computes it; for variables
        that the network's layers compute.
      stages: the number of stages.

    Raises:
      ValueError: if a cut goes through a loop.
    """
    block = program.global_block()
    phases = _phases(block)
    placed = _place_forward(block, phases, stage_of)
    _place_backward(block, phases, placed, stages)
    found = [Stage() for _ in range(stages)]
    for phase in (_FORWARD, _BACKWARD):
        for index, stage in sorted(placed.items()):
            if phases[index] == phase:
                found[stage].operations.append(index)
                found[stage].forward += phase == _FORWARD
                found[stage].defines |= set(block.ops[index].output_arg_names)
    _exchange(block, phases, placed, found)
    parameters = {f"{parameter.name}{_GRADIENT}" for parameter in program.all_parameters()}
    for stage in found:
        stage.gradients = sorted(stage.defines & parameters)
    return found


def _phases(block) -> list[int]:
    """Return the phase that each operation belongs to."""
    phases = [_phase_of_role(op.attr(_ROLES.kOpRoleAttrName())) for op in block.ops]
    read = {
        name
        for op, phase in zip(block.ops, phases, strict=True)
        if phase == _UPDATE
        for name in op.input_arg_names
    }
    for index, op in enumerate(block.ops):
        # the optimiser's constants have the role of the forward pass
        if not op.input_arg_names and read.issuperset(op.output_arg_names):
            phases[index] = _UPDATE
    return phases


def _phase_of_role(role: int) -> int:
    if role & int(_ROLES.OpRole.Optimize):
        return _UPDATE
    return _BACKWARD if role & int(_ROLES.OpRole.Backward) else _FORWARD


def _place_forward(block, phases: list[int], stage_of: dict[str, int]) -> dict[int, int]:
    """Return the stage of each operation of the forward pass, by its index.

    What is computed from data alone is placed where it is read first: a batch is fed to every
    stage, and need not be handed from one to the next.
    """
    placed: dict[int, int] = {}
    produced: dict[str, int] = {}  # what depends on a parameter -> the stage that computes it
    from_data = {name for name, var in block.vars.items() if var.is_data}
    data_only = []
    for index, op in enumerate(block.ops):
        if phases[index] != _FORWARD:
            continue
        if from_data.issuperset(op.input_arg_names):
            from_data |= set(op.output_arg_names)
            data_only.append(index)
            continue
        # an operation that a kernel put in place of another has the stage of what it reads
        known = [stage_of[name] for name in op.output_arg_names if name in stage_of]
        known += [produced[name] for name in op.input_arg_names if name in produced]
        placed[index] = max(known, default=0)
        produced |= dict.fromkeys(op.output_arg_names, placed[index])
        from_data -= set(op.output_arg_names)
    readers: dict[str, int] = {}
    for index, stage in placed.items():
        op = block.ops[index]
        # a loop continues the arrays that it writes to, and does not say that it reads them
        for name in (*op.input_arg_names, *op.output_arg_names):
            readers[name] = min(stage, readers.get(name, stage))
    for index in reversed(data_only):
        op = block.ops[index]
        outputs = op.output_arg_names
        own = max((stage_of.get(name, 0) for name in outputs), default=0)
        placed[index] = min((readers[name] for name in outputs if name in readers), default=own)
        for name in op.input_arg_names:
            readers[name] = min(placed[index], readers.get(name, placed[index]))
    return placed


def _place_backward(block, phases: list[int], placed: dict[int, int], stages: int) -> None:
    """Add the stage of each operation of the backward pass, by its index.

    The gradient of an operation belongs to its stage. It reads the gradients of what that
    operation computed, by whose names it is known.
    """
    computes = {
        name: stage
        for index, stage in sorted(placed.items())
        for name in block.ops[index].output_arg_names
    }
    produced: dict[str, int] = {}
    for index, op in enumerate(block.ops):
        if phases[index] != _BACKWARD:
            continue
        for names in (op.input_arg_names, op.output_arg_names):
            of = [name.split(_GRADIENT)[0] for name in names if _GRADIENT in name]
            known = [computes[name] for name in of if name in computes]
            if known:
                break
        # never in a later stage than what it reads: this pass goes from the last to the first
        known += [produced[name] for name in op.input_arg_names if name in produced]
        placed[index] = min(known, default=stages - 1)
        produced |= dict.fromkeys(op.output_arg_names, placed[index])


def _exchange(block, phases: list[int], placed: dict[int, int], stages: list[Stage]) -> None:
    """Find what each stage reads that another computes."""
    produced: dict[str, tuple[int, int]] = {}  # name -> stage and phase
    for index in sorted(placed, key=lambda index: (phases[index], index)):
        op, stage = block.ops[index], placed[index]
        for name in op.input_arg_names:
            if block.has_var(name) and block.var(name).is_data:
                _add(stages[stage].data, name)
            at, phase = produced.get(name, (stage, _FORWARD))
            if at == stage:
                continue
            if block.var(name).type != core.VarDesc.VarType.LOD_TENSOR:
                raise ValueError(f"{name!r} cannot go from one stage to another: not a tensor")
            is_earlier = phase == _FORWARD and at < stage
            _add(stages[stage].reads if is_earlier else stages[stage].awaits, name)
            _add(stages[at].hands_over if phase == _FORWARD else stages[at].returns, name)
        produced |= dict.fromkeys(op.output_arg_names, (stage, phases[index]))


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def stage_program(program, stage: Stage):
    """Return the program of one stage, which waits for nothing and adds nothing up.

    Args:
      program: the whole program.
      stage: the stage.
    """
    copy = program.clone()
    block = copy.global_block()
    keep_operations(block, set(stage.operations))
    _drop_unused_variables(block)
    for name in stage.reads:
        block.var(name).is_data = True
    return copy


def micro_batch_program(program, stage: Stage, hand_over, sums: dict[str, str], first: bool):
    """Return the program of one micro-batch in one stage.

    Args:
      program: what `stage_program` returned.
      stage: the stage.
      hand_over: called between the passes with what the stage hands over, returns what it
        awaits.
      sums: name of a parameter's gradient -> the variable that it is added to.
      first: whether the gradients are the first ones to be added, in place of what was there.
    """
    copy = program.clone()
    block = copy.global_block()
    if stage.awaits:
        block._insert_op(
            stage.forward,
            type="py_func",
            inputs={"X": stage.hands_over},
            outputs={"Out": stage.awaits},
            attrs={
                "forward_callable_id": PyFuncRegistry(hand_over).id,
                "backward_callable_id": -1,
                "backward_skip_vars": [],
            },
        )
    for gradient in stage.gradients:
        total = _create_sum(block, gradient, sums[gradient])
        if first:
            block.append_op(type="assign", inputs={"X": gradient}, outputs={"Out": total})
        else:
            block.append_op(
                type="elementwise_add",
                inputs={"X": total, "Y": gradient},
                outputs={"Out": total},
                attrs={"axis": -1},
            )
    return copy


def update_program(program, sums: dict[str, list[str]]):
    """Return the program that updates the weights.

    Args:
      program: the whole program.
      sums: name of a parameter's gradient -> the variables whose sum it is.
    """
    copy = program.clone()
    block = copy.global_block()
    kept = {index for index, phase in enumerate(_phases(block)) if phase == _UPDATE}
    keep_operations(block, kept)
    for gradient, totals in sums.items():
        parts = [_create_sum(block, gradient, total) for total in totals]
        block._prepend_op(type="sum", inputs={"X": parts}, outputs={"Out": gradient})
    _drop_unused_variables(block)
    return copy


def _create_sum(block, gradient: str, name: str) -> str:
    like = block.var(gradient)
    block.create_var(name=name, shape=like.shape, dtype=like.dtype, persistable=True)
    return name


def _drop_unused_variables(block) -> None:
    used = {name for op in block.ops for name in [*op.input_arg_names, *op.output_arg_names]}
    for name in set(block.vars) - used:
        block._remove_var(name, sync=False)
    block._sync_with_cpp()


def nothing(program, name: str) -> np.ndarray:
    """Return the value of a variable where there are no rows: empty along each unknown axis."""
    variable = program.global_block().var(name)
    shape = [max(size, 0) for size in variable.shape]
    return np.zeros(shape, paddle.base.data_feeder.convert_dtype(variable.dtype))
