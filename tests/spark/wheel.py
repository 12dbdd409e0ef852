"""The wheel that users install."""

import subprocess
import sys
from pathlib import Path

__all__ = ["build_wheel"]

ROOT = Path(__file__).resolve().parents[2]


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree, in `folder`."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel
