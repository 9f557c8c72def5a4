"""Text from outside, made safe to print: a terminal obeys some characters."""

import unicodedata

# Characters that turn the direction of what follows, or end a line without being a control.
_OTHERS = frozenset(
    "\u2028\u2029\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escaped(text: str, keep: str = "") -> str:
    r"""Return text with its control characters as escapes, such as \x1b.

    So a file's name or a line of text can neither colour nor clear a terminal, nor pass for
    another line. Bytes of a name that are not UTF-8 (lone surrogates) become \udc80 and the
    like.

    Args:
      keep: characters to leave as they are, such as a line break.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in keep or not _is_control(each) else _escape(each) for each in text
    )


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _OTHERS


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
