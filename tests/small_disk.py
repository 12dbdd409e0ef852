"""A file system of a few MiB, mounted for a test: a disk that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["small_disk"]


@contextmanager
def small_disk(place: Path, megabytes: int, owner: str | None = None) -> Iterator[Path]:
    """Make the directory `place`, and mount it; `owner` is a user whose server writes there.

    Where that is not allowed the test is skipped; in CI, which may mount, it fails.
    """
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode != 0:
        reason = f"a tiny tmpfs cannot be mounted here: {mount.stderr.strip()}"
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        if owner is not None:
            subprocess.run(["chown", owner, place], check=True)
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
