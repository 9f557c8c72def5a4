"""The rungs of the comparison: what kind of tensor each name stands for."""

from fnmatch import fnmatchcase

from parity.base.errors import UsageError

_LONGEST_PATTERN = 1000  # characters: the time to read one grows by their square

# First part of a tensor's name -> rung, in the order of computation.
RUNGS = {
    "batch": "batch",
    "initial": "batch",
    "schedule": "batch",
    "forward": "forward",
    "loss": "loss",
    "activation_gradient": "gradient",
    "gradient": "gradient",
    "gradient_norm": "gradient",
    "clipped_gradient": "gradient",
    "optimizer": "optimizer",
    "weight": "weight",
    "read": "replicas",
    "replicas": "replicas",
    "decode": "decode",
    "evaluate": "evaluation",
}

# The checks of a run that compare more than single recorded steps, each a rung of its own, in
# the order in which a run makes them once its recorded steps match.
CHECKS = ("evaluation", "answers", "resume", "repeat", "untraced", "counting")
# That of a training in a further framework, which a run adds where it is asked to.
WITNESS = "witness"


def rungs() -> list[str]:
    """Return the rungs in the order in which they are compared."""
    return list(dict.fromkeys([*RUNGS.values(), *CHECKS, WITNESS]))


def rung_of(name: str) -> str:
    """Return the rung of a tensor's name.

    Raises:
      UsageError: for a name on no rung.
    """
    prefix = name.split("/", 1)[0]
    if prefix not in RUNGS:
        raise UsageError(f"tensor {name!r} is on no rung; allowed prefixes: {', '.join(RUNGS)}")
    return RUNGS[prefix]


def check_name(name: str) -> None:
    """Check that a tensor's name is a path that begins with a rung.

    Raises:
      UsageError: otherwise.
    """
    rung_of(name)
    if not is_path(name) or (name in RUNGS and name != "gradient_norm"):
        raise UsageError(f"tensor {name!r}: no path behind the rung; allowed: RUNG/NAME")


def fits(name: str, *patterns: str) -> bool:
    """Return whether a name fits one of some patterns, such as "gradient/*".

    Raises:
      UsageError: for a pattern that is too long.
    """
    for pattern in patterns:
        if len(pattern) > _LONGEST_PATTERN:
            raise UsageError(
                f"pattern {pattern[:40]!r}... has {len(pattern):,} characters; allowed: up to "
                f"{_LONGEST_PATTERN:,}"
            )
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def can_fit(pattern: str) -> bool:
    """Return whether a name on some rung can fit a pattern, as far as its first part tells."""
    prefix = pattern.split("/", 1)[0]
    return prefix in RUNGS or bool(set(prefix) & set("*?["))


def is_path(name: str) -> bool:
    """Return whether a name is a path: printable parts between slashes, none of them empty."""
    return all(name.split("/")) and name.isprintable()
