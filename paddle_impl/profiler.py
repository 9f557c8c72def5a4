"""Reads the framework's profiler: which operations ran in some training steps, and when."""

from paddle.base import core

from parity.twins.training.timeline import Event

_ROLES = core.op_proto_and_checker_maker
_WAITS = "py_func"  # see strategies/stage_programs.py
_RUNS = (core.TracerEventType.Operator, core.TracerEventType.Communication)


def operation_phases(program):
    """Return the phases of a step that each operation can belong to.

    Args:
      program: the program, or graph, that is trained.

    Returns:
      Name of an operation in a profile -> set of phases.
    """
    found = {"all_reduce": {"all-reduce"}}
    # differs: a profile names only the type of an operation, which several phases may contain
    for block in program.blocks:
        for operation in block.ops:
            role = operation.attr(_ROLES.kOpRoleAttrName())
            phase = "forward"
            if role & int(_ROLES.OpRole.Optimize):
                phase = "update"
            elif role & int(_ROLES.OpRole.Backward):
                phase = "backward"
            found.setdefault(operation.type, set()).add(phase)
    return found


def read_profile(profile, phases):
    """Return the events of a profile.

    Args:
      profile: the records of the framework's profiler.
      phases: the phases that `operation_phases` returned.

    Returns:
      A list of Event.
    """
    events = []
    for number, root in enumerate(profile.values()):
        _read(root, f"thread {number}", phases, "forward", events)
    return events


def _read(node, thread, phases, phase, events):
    """Add the events inside a node; return their duration in microseconds, and the last phase.

    An operation whose type occurs in several phases belongs to the thread's current phase.
    """
    within = 0.0
    for child in sorted(node.children_node, key=lambda child: child.start_ns):
        # the engine, part of an operation, or a stage that waits for another one
        if child.type not in _RUNS or "::" in child.name or child.name == _WAITS:
            inner, phase = _read(child, thread, phases, phase, events)
            within += inner
            continue
        allowed = phases.get(child.name, {"other"})
        if len(allowed) == 1:
            (now,) = allowed
        else:
            now = phase if phase in allowed else min(allowed)
        inner, _ = _read(child, thread, phases, now, events)
        duration = (child.end_ns - child.start_ns) / 1e3
        start = child.start_ns / 1e3
        events.append(Event(child.name, child.name, now, thread, start, duration, inner))
        within += duration
        # the all-reduce of a gradient runs in the middle of the backward pass
        phase = now if now in ("forward", "backward", "update") else phase
    return within, phase
