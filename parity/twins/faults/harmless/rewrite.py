"""A harmless rewrite: an edit of one side's code that changes nothing but rounding."""

from collections.abc import Mapping

from parity.twins.faults.fault import Edit, Fault


def rewrite(
    name: str,
    what: str,
    setting: str,
    edits: Mapping[str, tuple[Edit, ...]],
    plain: Mapping[str, tuple[Edit, ...]] | None = None,
) -> Fault:
    """Return a rewrite, in the form of a fault that must not be found anywhere."""
    return Fault(name, what, "Harmless", setting, (), edits, plain=plain)
