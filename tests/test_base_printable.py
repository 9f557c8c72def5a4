"""Text from outside is shown, and no terminal obeys it."""

import unicodedata

import pytest

from parity.base.errors import UsageError
from parity.base.progress import say
from parity.base.text import escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\tb\r\nc\x7f\x9b", "a\\tb\\r\\nc\\x7f\\x9b"),
        ("name\udc80", "name\\udc80"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        ("你好 émile 🙂\u3000", "你好 émile 🙂\u3000"),
    ],
)
def test_control_characters_are_escaped_and_letters_are_not(text, shown):
    assert escaped(text) == shown
    assert str(UsageError(text)) == shown
    assert escaped(shown) == shown


def test_every_control_character_is_escaped():
    for code in range(0x110000):
        if unicodedata.category(chr(code)) in ("Cc", "Cs"):
            shown = escaped(chr(code))
            assert shown.isascii()
            assert shown.isprintable()


def test_remarks_are_escaped(capsys):
    say("/tmp/\x1b[2Jname: skipped")
    assert capsys.readouterr().err == "/tmp/\\x1b[2Jname: skipped\n"
