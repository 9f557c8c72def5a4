"""Range checks of the searches' arguments, which are named as on the command line."""

import math

from parity.base.errors import UsageError


def check_max_tokens(max_tokens: int) -> None:
    """Raise a UsageError unless an answer may have a token."""
    _check("--longest", max_tokens, max_tokens >= 1, ">= 1")


def check_beam(beam: int, length_penalty: float) -> None:
    """Raise a UsageError for a beam or a length penalty that is out of range."""
    _check("--beam", beam, beam >= 1, ">= 1")
    _check("--length-penalty", length_penalty, 0 <= length_penalty < math.inf, ">= 0")


def check_sampling(seed: int, temperature: float) -> None:
    """Raise a UsageError for a seed or a temperature that is out of range."""
    _check("--seed", seed, seed >= 0, ">= 0")
    _check("--temperature", temperature, 0 < temperature < math.inf, "> 0")


def _check(flag: str, seen: float, in_range: bool, allowed: str) -> None:
    if not in_range:
        raise UsageError(f"{flag} is {seen}; allowed: {allowed}")
