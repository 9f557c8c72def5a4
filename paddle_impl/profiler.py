"""What ran in some training steps, as the framework's own profiler tells it."""

from paddle.base import core

from parity.training.timeline import Event

_ROLES = core.op_proto_and_checker_maker
_RUNS = (core.TracerEventType.Operator, core.TracerEventType.Communication)


def operation_phases(program):
    """Return what tells in which phase of a step an operation runs.

    Args:
      program: that is trained.

    Returns:
      What a profile calls an operation -> the phases that it may be of.
    """
    found = {"all_reduce": {"all-reduce"}}
    # differs: a profile has types alone, of which several phases may have operations
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
      profile: what the framework's profiler has recorded.
      phases: of `operation_phases`.

    Returns:
      A list of Event.
    """
    events = []
    for number, root in enumerate(profile.values()):
        _read(root, f"thread {number}", phases, "forward", events)
    return events


def _read(node, thread, phases, phase, events):
    """Add what ran within a node; return the microseconds of it, and the last phase.

    A type that several phases have is of the one that the thread is in.
    """
    within = 0.0
    for child in sorted(node.children_node, key=lambda child: child.start_ns):
        if child.type not in _RUNS or "::" in child.name:  # the engine itself, or a part
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
        # sums of gradients run beside the rest of the backward pass
        phase = now if now in ("forward", "backward", "update") else phase
    return within, phase
