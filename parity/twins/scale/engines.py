"""How the engines of both frameworks sum gradients over processes, as far as it costs time."""

from parity.twins.scale.model import Engine

# Both sum all gradients at once, in one buffer, by a ring. What their software costs is
# measured.
ENGINES = {
    # gloo divides a chunk into at least two segments of at most 1 MiB, and sends one when its
    # receiver has said that it is ready
    "paddle": Engine(segment=1 << 20),
    # Every chunk is fetched by a remote call. The calls of the first round wait for their data
    # at the sender, and those of later rounds have come before it.
    "tensorflow": Engine(delays_before=1),
}
# The strategies whose ranks sum their gradients by a ring, by framework.
RINGS = {"paddle": "data-parallel", "tensorflow": "multi-worker"}
# How many all-reduces a step has, by framework.
COLLECTIVES = {"paddle": 1, "tensorflow": 1}
