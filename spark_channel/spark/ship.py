"""Makes a wheel that was given to `--py-files` importable in Spark's workers.

Spark puts zips, eggs and jars on the workers' path, and copies a wheel there without doing so. A wheel
is a zip: a copy of it under that ending is what Spark understands.
"""

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["ship_wheel", "wheel_of"]


def wheel_of(module_file: str) -> Path | None:
    """The wheel that a module was imported from, if it was."""
    for parent in Path(module_file).parents:
        if parent.suffix == ".whl" and parent.is_file():
            return parent
    return None


def ship_wheel(context: Any) -> None:
    """Hand this package to the workers of a SparkContext, if it came from a wheel; once per context."""
    wheel = wheel_of(__file__)
    if wheel is None:
        return
    name = f"{wheel.stem}.zip"
    if any(path.endswith(f"/{name}") for path in context.listFiles):
        return
    folder = Path(tempfile.mkdtemp(prefix="spark-channel-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors fetch it whenever they start
    shutil.copyfile(wheel, folder / name)
    context.addPyFile(str(folder / name))
