"""Lines of source code, as a report names them: file:line (function), the caller last."""

from collections.abc import Iterable, Mapping
from pathlib import Path

Frame = tuple[str, int, str]  # file, line, function


def chain(frames: Iterable[Frame], package: str) -> str:
    """Return the calls within a package that led to something, such as an operation.

    Of the calls in one file the last one stands for all: they lead from layer to network.
    Those of a folder `strategies` are left out where there are others.

    Args:
      frames: a call stack, the outermost call first.
      package: the file of a module at the top of the package.

    Returns:
      Such as "tf_impl/layers.py:31 (linear), from tf_impl/networks.py:70 (seq2seq)", with
      paths relative to the folder that holds the package; empty if no call is from it.
    """
    folder = Path(package).parent
    mine = [
        (Path(file).relative_to(folder.parent), line, function)
        for file, line, function in frames
        # nameless: a script's own lines, and comprehensions
        if Path(file).is_relative_to(folder) and not function.startswith("<")
    ]
    calls = [each for each in mine if "strategies" not in each[0].parts] or mine[-1:]
    last = {file.as_posix(): f"{line} ({function})" for file, line, function in calls}
    texts = [f"{file}:{place}" for file, place in last.items()]
    return ", from ".join(texts[::-1])


def found_for(tensor: str, sources: Mapping[str, str]) -> str:
    """Return the source of a tensor, or else of what its name begins with; empty without one.

    Args:
      tensor: a name, such as "forward/encoder#1/0": output 0 of the second call.
      sources: such a name, or the beginning of several up to a slash -> its source.
    """
    parts = tensor.split("/")
    for count in range(len(parts), 0, -1):
        name = "/".join(parts[:count])
        for each in (name, name.partition("#")[0]):
            if each in sources:
                return sources[each]
    return ""
