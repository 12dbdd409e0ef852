"""The machine's time zone by its name."""

import os
from pathlib import Path
from zoneinfo import available_timezones

__all__ = ["local_zone"]


def local_zone() -> str:
    """The zone of this machine, in which DataX shows times; UTC where it has no name."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named:
        parts = Path("/etc/localtime").resolve().parts
        named = "/".join(parts[parts.index("zoneinfo") + 1 :]) if "zoneinfo" in parts else ""
    return named if named in available_timezones() else "UTC"
