"""Coverage-guided fuzzing of every reader of a file: `make fuzz`.

Atheris mutates a whole file and keeps each mutation that reaches new code. A reader fails by an
exception of its own, by more than 5 s for one file, or by more than 1 GB of memory; the file
that did it is then in the folder of findings.
"""

import io
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr
from pathlib import Path

import atheris
import click

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

# it says on stderr which modules it instruments: a hundred lines
with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["parity", "data"]):
    from fuzzed_readers import READERS

SECONDS = 5  # for one file
MEGABYTES = 1000  # with the interpreter, NumPy and what the fuzzer itself keeps
LONGEST = 65_536  # bytes of a file


def fuzz(name: str, inputs: int, findings: Path, folder: Path) -> None:
    """Give a reader so many files, which lie in a folder; ends the process."""
    given, kept = folder / "given", folder / "kept"
    given.mkdir()
    kept.mkdir()
    opened = READERS[name].open(given)
    (kept / "whole").write_bytes(opened.seed)
    findings.mkdir(parents=True, exist_ok=True)
    atheris.Setup(
        [
            "fuzz",
            f"-runs={inputs}",
            f"-timeout={SECONDS}",
            f"-rss_limit_mb={MEGABYTES}",
            f"-max_len={LONGEST}",
            f"-artifact_prefix={findings}/{name}-",
            "-print_final_stats=1",
            "-verbosity=0",
            str(kept),
        ],
        opened.accepts,
    )
    atheris.Fuzz()


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(READERS)))
@click.option("--inputs", default=1_000_000, show_default=True, help="Files for each reader.")
@click.option(
    "--findings",
    default=Path("out/fuzz"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where files are kept that a reader failed on.",
)
@click.option("--within", hidden=True, type=click.Path(path_type=Path))
def main(names: tuple[str, ...], inputs: int, findings: Path, within: Path | None) -> None:
    """Fuzz the readers NAMES, all of them by default."""
    names = names or tuple(READERS)
    if within is not None:
        fuzz(names[0], inputs, findings, within)
    failed = []
    for name in names:
        start = time.monotonic()
        command = [sys.executable, __file__, name, f"--inputs={inputs}"]
        # The fuzzer ends its process at once, so that the folder is another's to remove.
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm") as folder:
            command += [f"--findings={findings}", f"--within={folder}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if done.returncode:
            failed.append(name)
            print(done.stdout + done.stderr)
        how = "FAILED" if done.returncode else "ok"
        print(f"{name}: {inputs:,} files in {seconds:.0f} s: {how}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
