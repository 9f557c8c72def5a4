"""Records of which sources every fault was last planted in and found.

What decides whether the faults must be planted again is a digest of the sources, never a date.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import write_whole
from parity.twins.cli.options import FaultOptions
from parity.twins.faults.fault import DTYPES, KERNELS
from parity.twins.faults.finding import SIGNATURES, Finding, all_found
from parity.twins.launch.processes import FOLDERS, ROOT
from parity.twins.spec.frameworks import FRAMEWORKS

RECORD = ROOT / "parity" / "faults" / "last_hunt.json"

# Everything that a hunt runs. The lock is among it: it pins the frameworks.
_FOLDERS = ("data", "parity", *FOLDERS.values())
_FILES = ("requirements.lock",)
_WRITTEN_BY_A_HUNT = (RECORD, SIGNATURES)


def sources(root: Path = ROOT) -> Iterator[Path]:
    """Yield the files that decide what a hunt finds, in a fixed order."""
    left_out = {path.relative_to(ROOT) for path in _WRITTEN_BY_A_HUNT}
    for path in sorted(file for folder in _FOLDERS for file in (root / folder).rglob("*")):
        if (
            path.is_file()
            and "__pycache__" not in path.parts
            and path.relative_to(root) not in left_out
        ):
            yield path
    yield from (root / name for name in _FILES)


def digest(root: Path = ROOT) -> str:
    """Return one SHA-256 over the names and contents of all sources."""
    whole = hashlib.sha256()
    for path in sources(root):
        of_file = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{of_file}  {path.relative_to(root).as_posix()}\n".encode())
    return whole.hexdigest()


def recorded_digest(record: Path = RECORD) -> str | None:
    """Return the digest of the sources that were last hunted in full; None if none were."""
    try:
        found = json.loads(record.read_text())["sha256"]
    except FileNotFoundError:
        return None
    return str(found)


def must_hunt(root: Path = ROOT, record: Path = RECORD) -> tuple[bool, str]:
    """Return whether to plant the faults again, and one line that says why."""
    now, then = digest(root), recorded_digest(record)
    if then is None:
        return True, "faults: planting them, as no full hunt is recorded"
    if now == then:
        return False, f"faults: all were found in these very sources (sha256 {now[:12]})"
    return True, (
        f"faults: planting them, as the sources have changed since the last full hunt "
        f"(sha256 {then[:12]} then, {now[:12]} now)"
    )


def check_full(options: FaultOptions) -> None:
    """Check that a hunt whose result is kept leaves nothing out.

    A hunt that is recorded plants all faults, in every way. One whose signatures are stored may
    choose among the faults, but not among the ways to plant them: its signatures replace all
    those of the same faults.

    Raises:
      UsageError: if it does.
    """
    flag = "--record" if options.record else "--save-signatures"
    if not (options.record or options.save_signatures):
        return
    complete = {"sides": FRAMEWORKS, "dtype": DTYPES, "kernels": KERNELS}
    for name, values in complete.items():
        if set(getattr(options, name)) != set(values):
            raise UsageError(
                f"{flag} is given with --{name} {','.join(getattr(options, name))}; "
                f"allowed with it: {','.join(values)}"
            )
    for name in ("only", "strategy", "once") if options.record else ("once",):
        if getattr(options, name):
            raise UsageError(f"{flag} is given with --{name}; allowed: without it")


def record_hunt(
    findings: Sequence[Finding], hunted: str, root: Path = ROOT, record: Path = RECORD
) -> str:
    """Record a full hunt; return one line that says whether it was.

    Args:
      findings: what was found.
      hunted: the digest of the sources when the hunt began.
    """
    if not all_found(findings):
        return "not recorded: not every fault was found"
    if digest(root) != hunted:
        return "not recorded: the sources have changed during the hunt"
    values = {
        "sha256": hunted,
        "faults": len({finding.fault for finding in findings}),
        "planted": len(findings),
    }
    write_whole(record, json.dumps(values, indent=1).encode() + b"\n")
    return f"recorded in {record.name}: all found in sources {hunted[:12]}"
