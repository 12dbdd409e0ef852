"""The other processes of a session: which spark-channel they have, and how they get this one."""

import atexit
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructType

from spark_channel.errors import UnsupportedError
from spark_channel.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "TaskPython",
    "VersionDataSource",
    "check_server",
    "pythons_of_tasks",
    "ship",
    "ship_archive",
]

_ABSENT = re.compile(r"No module named '(?P<name>[\w.]+)'")
_HOW = (
    "install one version on both, or send this one for the session by spark_channel.ship(spark), then call register "
    "again"
)


class VersionDataSource(DataSource):
    """Its schema is the version of the process that plans reads: the driver's host."""

    @classmethod
    def name(cls) -> str:
        return "spark_channel_version"

    def schema(self) -> StructType:
        return StructType().add(__version__, StringType())


def check_server(spark: SparkSession) -> None:
    """Ask the server of a Spark Connect session for its spark-channel.

    Raises:
        UnsupportedError: it has none, lacks what that needs, or has another version.
    """
    mine = __version__
    spark.dataSource.register(VersionDataSource)
    try:
        (theirs,) = spark.read.format(VersionDataSource.name()).load().schema.names
    except PySparkException as error:
        absent = _ABSENT.search(str(error))
        if absent is None:
            raise
        name = absent["name"]
        if name in ("spark_channel", "pyspark_channel"):
            raise UnsupportedError(
                "the server of this Spark Connect session has no spark-channel: install spark-channel "
                f"{mine} where its driver and executors run, or send it for the session by spark_channel.ship(spark), "
                "then call register again"
            ) from error
        if not name.startswith("spark_channel."):
            raise UnsupportedError(
                f"the server of this Spark Connect session lacks {name}, which spark-channel needs: install it "
                "where its driver and executors run"
            ) from error
        theirs = "of another version"  # that has no such module
    if theirs != mine:
        raise UnsupportedError(
            f"the server of this Spark Connect session has a spark-channel {theirs}, and this client has {mine}: {_HOW}"
        )


def ship(spark: SparkSession) -> None:
    """Send this spark-channel to the driver and the executors, for as long as the session (Connect) or context lives.

    What it depends on, such as pyarrow and pydantic, must be installed there. Call it before `register` and before the
    first job: a Python worker that has imported the package keeps what it has.
    """
    try:
        context = spark.sparkContext
    except (PySparkException, AttributeError):
        spark.addArtifacts(str(_archive()), pyfile=True)
    else:
        ship_archive(context, _archive())


def ship_archive(context: Any, archive: Path | None = None) -> None:
    """Send this package to the workers of a SparkContext, once; without `archive` only if it came from a wheel.

    Spark adds zips, eggs and jars of `--py-files` to the workers' path, but not wheels. A wheel is a zip, so a copy
    with that ending is sent.
    """
    if archive is None:
        if _archive_of(__file__) is None:
            return
        archive = _archive()
    if not any(path.endswith(f"/{archive.name}") for path in context.listFiles):
        context.addPyFile(str(archive))


def _archive() -> Path:
    """A zip of the package as this process imports it, which lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="spark-channel-"))
    # Executors fetch it whenever they start.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = _archive_of(__file__)
    if archive is not None:
        return Path(shutil.copyfile(archive, folder / f"{archive.stem}.zip"))
    zip_path = folder / f"spark_channel-{__version__}.zip"
    home = Path(__file__).parents[1]
    with zipfile.ZipFile(zip_path, "w", zipfile.ZIP_DEFLATED) as written:
        for path in sorted(home.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                written.write(path, path.relative_to(home.parent))
        written.write(home.parent / "pyspark_channel.py", "pyspark_channel.py")
    return zip_path


def _archive_of(module_file: str) -> Path | None:
    """The wheel or zip that a module was imported from, if it was."""
    for parent in Path(module_file).parents:
        if parent.suffix in (".whl", ".zip") and parent.is_file():
            return parent
    return None


@dataclass(frozen=True, slots=True)
class TaskPython:
    """What a task found: its host, Python's version, and spark-channel's, "" where it has `error` instead."""

    host: str
    python: str
    version: str
    error: str = ""


def pythons_of_tasks(spark: SparkSession, tasks: int) -> list[TaskPython]:
    """The Pythons of so many tasks at a time, each once."""

    # Functions inside of another one are pickled with their code: they run where the package is missing, too.
    def look() -> tuple[str, str, str, str]:
        import platform
        import socket

        version, error = "", ""
        try:
            import spark_channel.connectors.base.registry
            import spark_channel.version

            version = spark_channel.version.__version__
        except ImportError as missing:
            error = str(missing)
        return socket.gethostname(), platform.python_version(), version, error

    def look_in_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow

        names = ["host", "python", "version", "error"]
        for _ in batches:
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array([text]) for text in look()], names)

    try:
        context = spark.sparkContext
    except (PySparkException, AttributeError):
        schema = "host string, python string, version string, error string"
        numbers = spark.range(0, tasks, 1, tasks)
        rows = [tuple(row) for row in numbers.mapInArrow(look_in_batches, schema).collect()]
    else:
        rows = context.parallelize(range(tasks), tasks).map(lambda _: look()).collect()
    return sorted(
        {TaskPython(*row) for row in rows}, key=lambda python: (python.host, python.version)
    )
