"""Starts `advert_remover`, which removes an advert when the processes that it names were killed."""

import json
import subprocess
import sys
from pathlib import Path

from spark_channel.service import advert_remover
from spark_channel.service.discovery import ServiceRecord, bare_environment

__all__ = ["keep_clean"]


def keep_clean(directory: Path, name: str, advert: ServiceRecord) -> None:
    """Remove file `name` once the service, or the process that it watches, is gone.

    Another advert that is there by then is left alone.
    """
    process = subprocess.Popen(  # noqa: S603 - this package's program, by the interpreter that runs this
        [sys.executable, "-I", "-S", "-c", _program()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=bare_environment(),
    )
    work = {
        "directory": str(directory),
        "name": name,
        "nonce": advert.nonce,
        "pids": [advert.service_pid, advert.watch_pid],
    }
    try:
        process.communicate(json.dumps(work).encode(), timeout=5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _program() -> str:
    """The text of `advert_remover`: as a text it is small to run, also where this package is inside a zip."""
    source = advert_remover.__loader__.get_source(advert_remover.__name__)  # type: ignore[union-attr] # files and zips
    if source is None:
        raise ImportError(f"{advert_remover.__name__} is installed without its source")
    return str(source)
