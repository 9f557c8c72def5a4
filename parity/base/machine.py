"""Facts about this machine that a measured figure is worthless without."""

import datetime
import os
import platform
from pathlib import Path
from typing import Any

from parity.base.cores import usable_cores

_CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """Return the name of the processor, or its architecture where Linux does not tell it."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, names), platform.machine())


def processor_facts() -> list[str]:
    """Return what tells processors apart, as lines of Linux's /proc/cpuinfo; sorted."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    names = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
    return sorted({line for line in lines if line.partition(":")[0].strip() in names})


def user_cache() -> Path:
    """Return the user's folder for what was measured on this machine; it may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(home) / "training-parity"


def measured_here() -> dict[str, Any]:
    """Return the date (UTC), processor and cores, for a file of measured figures."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": usable_cores(),
    }
