"""Links, times and sizes as people write them."""

from parity.base.errors import UsageError
from parity.twins.scale.model import Compute, Link

_UNITS = {"mbit": 1e6 / 8, "gbit": 1e9 / 8}  # bytes per second


def parse_links(words: tuple[str, ...]) -> dict[str, Link]:
    """Return name -> link, for words such as "lan=1gbit/0.1ms".

    Raises:
      UsageError: for a word that is not of that form, or a name that comes twice.
    """
    found: dict[str, Link] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and name) or name in found:
            raise UsageError(
                f"--links has {word!r}; allowed: NAME=BANDWIDTH/LATENCY, each name once"
            )
        found[name] = parse_link("--links", text)
    return found


def parse_link(flag: str, text: str) -> Link:
    """Return a link, for a text such as "1gbit/0.1ms".

    Raises:
      UsageError: for a text that is not of that form.
    """
    bandwidth, _, latency = text.lower().partition("/")
    for unit, size in _UNITS.items():
        if bandwidth.endswith(unit) and latency.endswith("ms"):
            speed = _number(bandwidth.removesuffix(unit))
            seconds = _number(latency.removesuffix("ms"))
            if speed and seconds is not None:
                return Link(seconds / 1e3, speed * size)
    raise UsageError(
        f"{flag} has {text!r}; allowed: BANDWIDTH/LATENCY, such as 100mbit/1ms or 10gbit/0.05ms"
    )


def parse_compute(text: str) -> Compute:
    """Return the time of a step, for a text such as "0.01/0.002".

    Raises:
      UsageError: for a text that is not of that form, or a step that takes no time.
    """
    fixed, per_row = (_number(each) for each in text.partition("/")[::2])
    if fixed is None or per_row is None or fixed + per_row == 0:
        raise UsageError(
            f"--compute is {text!r}; allowed: FIXED/PER_ROW, in seconds, of a step that takes "
            "some time"
        )
    return Compute(fixed, per_row)


def milliseconds(seconds: float) -> str:
    """Return a time with three digits, in milliseconds or, from ten seconds on, in seconds."""
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    text = f"{seconds * 1e3:.3g}" if seconds < 0.9995 else f"{seconds * 1e3:,.0f}"
    return f"{text} ms"


def megabytes(size: float) -> str:
    """Return a size in units of a million bytes."""
    return f"{size / 1e6:,.2f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"


def link_text(link: Link) -> str:
    """Return a link in words, such as "1 Gbit/s, 0.1 ms"."""
    bits = link.bandwidth * 8
    speed = f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
    return f"{speed}, {link.latency * 1e3:.3g} ms"


def _number(text: str) -> float | None:
    """Return a number that is not negative, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
