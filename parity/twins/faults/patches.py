"""Reads mistakes from text: what each is, and what it changes in the source of a side.

    == NAME: what is wrong
    topic: the difference between the frameworks, or between two ports, that invites it
    found in: shell patterns, separated by commas
    check: the check of whole runs that must find it
    only: a precision, as REASON
    run: the name of a run

    --- tf_impl/layers.py (plain kernels)
     a line that stays, to say where
    -a line to remove
    +a line to add
    @@
    -the next place in this file
    +what stands there

`check` and `only` may be left out. A mistake that several runs can make has several parts, each
of which begins with `run` and may say anew where it is found. The lines of a place, without
those to add, must stand in the file exactly once. A file is changed for the side whose folder
it is in; `*_impl/` stands for both, written as TensorFlow has it, and any other file is changed
in the copy that one side runs. Words in parentheses narrow this down: a framework, `fast
kernels` or `plain kernels`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parity.twins.faults.fault import DTYPES, KERNELS, Edit, Fault

_SIDES = {"tf_impl": "tensorflow", "paddle_impl": "paddle"}
_BOTH = "*_impl/"


@dataclass
class _Part:
    """The text of one part of a mistake.

    Attributes:
      said: key -> value.
      places: what follows "--- ", and the lines of each place in that file.
    """

    said: dict[str, str]
    places: list[tuple[str, list[list[str]]]] = field(default_factory=list)


def read_mistakes(path: Path) -> tuple[Fault, ...]:
    """Return the mistakes of a file, one for each run that they are planted in.

    Raises:
      ValueError: naming the line, if it is not as described above.
    """
    found: list[Fault] = []
    said: dict[str, str] = {}
    part: _Part | None = None

    def end() -> None:
        if part is not None:
            found.append(_fault(part))

    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("== "):
            end()
            part, (name, _, cause) = None, line[3:].partition(": ")
            said = {"name": name, "cause": cause}
        elif not said:
            continue  # what the file is about
        elif line.startswith("run: "):
            end()
            part = _Part({**said, "run": line[5:]})
        elif line.startswith("--- ") and part is not None:
            part.places.append((line[4:], [[]]))
        elif part is not None and part.places and (not line or line[0] in " +-@"):
            if line.startswith("@@"):
                part.places[-1][1].append([])
            else:
                part.places[-1][1][-1].append(line or " ")
        elif line:
            key, colon, value = line.partition(": ")
            if not colon or key not in ("topic", "found in", "check", "only"):
                raise ValueError(f"{path.name}, line {number}: {line!r}")
            (said if part is None else part.said)[key] = value
    end()
    return tuple(found)


def _fault(part: _Part) -> Fault:
    said = part.said
    by_kernels: dict[str, dict[str, tuple[Edit, ...]]] = {each: {} for each in KERNELS}
    for place, hunks in part.places:
        file, _, words = place.partition(" (")
        for kernels, edits in by_kernels.items():
            for side, path, translated in _sides(file):
                if _is_for(words, side, kernels):
                    made = tuple(_edit(path, lines, translated) for lines in hunks)
                    edits[side] = (*edits.get(side, ()), *made)
    fast, plain = (by_kernels[each] for each in KERNELS)
    dtype, _, reason = said.get("only", "").partition(", as ")
    return Fault(
        said["name"],
        said["cause"],
        said.get("topic", ""),
        said["run"],
        tuple(said["found in"].split(", ")) if "found in" in said else (),
        fast,
        (dtype,) if dtype else DTYPES,
        reason,
        None if plain == fast else plain,
        said.get("check", ""),
    )


def _sides(file: str) -> Iterator[tuple[str, str, Callable[[str], str]]]:
    """Yield (framework, path, what its lines are put through) for every side of a file."""
    for folder, side in _SIDES.items():
        if file.startswith(_BOTH):
            path = f"{folder}/{file.removeprefix(_BOTH)}"
            yield side, path, in_paddle if side == "paddle" else str
        elif file.split("/")[0] not in _SIDES or file.startswith(f"{folder}/"):
            yield side, file, str


def _is_for(words: str, side: str, kernels: str) -> bool:
    """Return whether the words in parentheses leave a side and its kernels in."""
    said = set(words.strip(")").replace(",", " ").split())
    sides, kinds = said & set(_SIDES.values()), said & set(KERNELS)
    return (not sides or side in sides) and (not kinds or kernels in kinds)


def _edit(file: str, lines: list[str], translated: Callable[[str], str]) -> Edit:
    while lines and not lines[-1].strip():  # what parts it from the next
        lines = lines[:-1]
    old, new = (
        "".join(f"{line[1:]}\n" for line in lines if line[0] in kept) for kept in (" -", " +")
    )
    return Edit(file, translated(old), translated(new))


def in_paddle(text: str) -> str:
    """Return code of TensorFlow's side as Paddle's has it, as far as the names differ."""
    return (
        text.replace("tf.reduce_", "paddle.")
        .replace("tf.nn.", "F.")
        .replace("tf.sigmoid", "F.sigmoid")
        .replace("tf.expand_dims", "paddle.unsqueeze")
        .replace("tf.", "paddle.")
    )
