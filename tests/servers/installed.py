"""What `.ci/servers` has installed."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["EVERY", "installed", "not_installed", "run_unpacked"]

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"
EVERY = ".ci/servers .venv every"
"""What installs the servers of `make test-servers`."""


def installed(name: str, package: str, *, by: str = ".ci/servers") -> Path:
    """The path in artifacts/; skips the test where it could not be installed, and fails it where all must be (CI).

    `package` is the one that it is of, and `by` the script that installs it.
    """
    path = ARTIFACTS / name
    if not path.exists():
        not_installed(f"artifacts/{name} ({package})", by)
    return path


def not_installed(what: str, by: str = ".ci/servers") -> NoReturn:
    """Skip the test, or fail it where all must be installed (CI)."""
    stop = pytest.fail if os.environ.get("CI") else pytest.skip
    stop(f"{what} is not installed; run {by}, which says what it needs")


def run_unpacked(root: Path, program: str) -> list[str]:
    """What starts `usr/PROGRAM` of packages that are unpacked in `root`, by the loader and the libraries beside it."""
    (loader,) = root.glob("usr/lib*/ld-linux-*.so.*")
    (libraries,) = root.glob("usr/lib/*-linux-gnu")
    return [str(loader), "--library-path", str(libraries), str(root / "usr" / program)]
