"""What `.ci/servers` has put into artifacts/."""

import os
from pathlib import Path

import pytest

__all__ = ["installed"]

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"


def installed(name: str, package: str = "") -> Path:
    """Its path; skips the test where it could not be installed, and fails it where all must be (CI).

    `package` is the Debian package it is of.
    """
    path = ARTIFACTS / name
    if not path.exists():
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        of = f" (Debian's package {package})" if package else ""
        stop(f"artifacts/{name}{of} is not installed; run .ci/servers, which says what it needs")
    return path
