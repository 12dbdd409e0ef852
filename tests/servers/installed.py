"""What `.ci/servers` has put into artifacts/."""

import os
from pathlib import Path

import pytest

__all__ = ["installed"]

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"


def installed(name: str) -> Path:
    """Its path; skips the test where it could not be installed, and fails it where all must be (CI)."""
    path = ARTIFACTS / name
    if not path.exists():
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop(f"artifacts/{name} is not installed; run .ci/servers, which says what it needs")
    return path
