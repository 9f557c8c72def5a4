"""What ran in some training steps, as the framework's own profiler tells it."""

from parity.training.timeline import Event


def operation_phases(program):
    """Return what tells in which phase of a step an operation runs.

    Args:
      program: that is trained.

    Returns:
      What a profile calls an operation -> the phases that it may be of.
    """
    found, reached = {}, "data"
    # differs: in the order in which they were made, since gradients know no phases here
    for operation in program.get_operations():
        name = operation.name
        if name.startswith("gradients/"):
            reached = "backward"
        elif name.startswith("global_norm/"):
            reached = "update"
        phase = "forward" if name.startswith("replica_") else reached
        devices = {tensor.device for tensor in operation.inputs}
        if phase == "backward" and len(devices) > 1:
            phase = "all-reduce"
        found[name] = {phase}
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
    for step in profile:
        for device in step.step_stats.dev_stats:
            thread = device.device.rpartition("device:")[2]
            for node in device.node_stats:
                duration = node.op_end_rel_micros - node.op_start_rel_micros
                start = node.all_start_micros + node.op_start_rel_micros
                (phase,) = _phase(node.node_name, phases)
                events.append(
                    Event(_type(node), node.node_name, phase, thread, start, duration)
                )
    return events


def _type(node):
    """Return the type of an operation, which stands before its inputs."""
    _, _, called = node.timeline_label.partition(" = ")
    return called.partition("(")[0] or node.node_name


def _phase(name, phases):
    """Return the phase of a node that may have been made of others, as those of loops are."""
    if name in phases:
        return phases[name]
    scope = name.partition("/")[0]
    if scope.startswith("replica_"):
        return {"forward"}
    return {"backward"} if scope == "gradients" else {"other"}
