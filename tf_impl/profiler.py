"""Reads the framework's profiler: which operations ran in some training steps, and when."""

import re

from parity.twins.training.timeline import Event

_SCOPE = re.compile(r"(?:worker_\d+/)?(replica|gradients|global_norm)(?:_\d+)?/")
_WORKER = re.compile(r"(worker_\d+)/")
_SUMS = ("AddN", "ConcatV2")  # of the replicas' gradients; a table's are first joined


def operation_phases(program):
    """Return the phases of a step that each operation can belong to.

    Args:
      program: the program, or graph, that is trained.

    Returns:
      Name of an operation in a profile -> set of phases.
    """
    found, reached, worker = {}, "data", None
    # differs: an operation does not know its phase here, but operations are made phase by phase
    for operation in program.get_operations():
        name = operation.name
        scope, of_worker = _scope(name), _WORKER.match(name)
        if of_worker and of_worker[1] != worker:  # the next worker's operations begin
            worker, reached = of_worker[1], "data"
        reached = {"gradients": "backward", "global_norm": "update"}.get(scope, reached)
        phase = "forward" if scope == "replica" else reached
        devices = {tensor.device for tensor in operation.inputs}
        if phase == "backward" and operation.type in _SUMS and len(devices) > 1:
            phase = "all-reduce"  # others that read from two devices are between two stages
        found[name] = {phase}
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
    """Return the type of an operation: its label is "NAME = TYPE(INPUTS)"."""
    _, _, called = node.timeline_label.partition(" = ")
    return called.partition("(")[0] or node.node_name


def _phase(name, phases):
    """Return the phase of a node, by its scope if the session made it, as it does for loops."""
    if name in phases:
        return phases[name]
    return {"replica": {"forward"}, "gradients": {"backward"}}.get(_scope(name), {"other"})


def _scope(name):
    """Return the scope that tells an operation's phase: replica, gradients or global_norm."""
    scope = _SCOPE.match(name)
    return scope and scope[1]
