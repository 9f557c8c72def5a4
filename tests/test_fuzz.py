"""Readers of files, given mutated files: refused in one line or read, and nothing else.

`make fuzz` runs a million files through each; here it is some hundreds, of mutations that are
made for the formats at hand: what JSON allows and nobody expects, and damage to single bytes.
"""

import pytest
from fuzzed_readers import READERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# What has brought readers of such files to a traceback, a hang or all of the memory.
HOSTILE = (
    *(b"", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r", b"\t", b"\x1b[2J", b",", b'"'),
    *(
        b"null",
        b"true",
        b"-1",
        b"0",
        b"1e999",
        b"NaN",
        b"-Infinity",
        b"1.5",
        b'"x"',
        b"[]",
        b"{}",
    ),
    *(b"9" * 30, b"9" * 400, b"9" * 5000, b"1e400", b"[" * 100_000, b'{"a":' * 100_000),
    *(b'"\\ud800"', b'"\\u0000"', b"\xed\xa0\x80", b"[[0]]", b'{"a": 1, "a": 2}'),
)


@st.composite
def mutations(draw):
    """Draw a list of (share of the length, bytes taken out, bytes put in or one of HOSTILE)."""
    count = draw(st.integers(1, 4))
    places = st.floats(0, 1, exclude_max=True)
    inserted = st.one_of(st.sampled_from(range(len(HOSTILE))), st.binary(max_size=6))
    return [(draw(places), draw(st.integers(0, 40)), draw(inserted)) for _ in range(count)]


def mutated(content: bytes, changes) -> bytes:
    for place, taken, put in changes:
        at = int(place * (len(content) + 1))
        put = put if isinstance(put, bytes) else HOSTILE[put]
        content = content[:at] + put + content[at + taken :]
    return content


# Values of JSON, which are replaced whole: as bytes, few mutations leave the file JSON.
def value_at(content: bytes, place: float) -> tuple[int, int]:
    """Return where a value begins and ends, after a colon or a comma near a place."""
    starts = [i + 1 for i, byte in enumerate(content) if byte in b":=,"]
    if not starts:
        return 0, len(content)
    start = starts[int(place * len(starts))]
    ends = [i for i in range(start, len(content)) if content[i] in b",}\n]"]
    return start, ends[0] if ends else len(content)


@pytest.fixture(scope="module", params=READERS)
def opened(request, tmp_path_factory):
    return READERS[request.param].open(tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutations())
def test_damaged_bytes_are_refused_in_one_line(opened, changes):
    opened.accepts(mutated(opened.seed, changes))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.floats(0, 1, exclude_max=True), st.sampled_from(range(len(HOSTILE))))
def test_hostile_values_are_refused_in_one_line(opened, place, put):
    content = opened.seed
    start, end = value_at(content, place)
    opened.accepts(content[:start] + HOSTILE[put] + content[end:])
