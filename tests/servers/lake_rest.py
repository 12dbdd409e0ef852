"""Iceberg's own REST catalog, which its project tests clients with: `RestCatalog.java`. See `.ci/lakes`."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.installed import EVERY, installed

__all__ = ["lake_rest"]


@contextmanager
def lake_rest(folder: Path) -> Iterator[str]:
    """The uri of the catalog, whose warehouse is in `folder`."""
    jars = installed("lakes", "org.apache.iceberg:iceberg-open-api of Maven", by=EVERY) / "rest"
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    command = ["java", *flags, "-cp", f"{jars}:{jars}/*", "RestCatalog", str(folder)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(
                f"Iceberg's REST catalog does not start: {(folder / 'log').read_text()[-2000:]}"
            )
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
