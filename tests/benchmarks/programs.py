"""Other programs that copy tables, by version, and the command line of each: for `program_copies`.

Those of PyPI and Maven are installed once, into artifacts/peers; pgcopydb, mydumper and the JDBC drivers are Debian's.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["JDBC", "PEERS", "Command", "MissingError", "Programs", "install", "jars"]

PEERS = Path(__file__).resolve().parents[2] / "artifacts" / "peers"
JDBC = Path("/usr/share/java/postgresql.jar")
SLING, DUCKDB, CONNECTORX, ADBC = "1.4.11", "1.5.5", "0.4.6", "1.13.0"
DLT, SEATUNNEL = "1.31.0", "2.3.8"
Command = Sequence[object]

_OF_PYPI = (
    f"sling-linux-amd64=={SLING}",
    f"duckdb=={DUCKDB}",
    f"duckdb-extension-postgres-scanner=={DUCKDB}",
    f"connectorx=={CONNECTORX}",
    f"adbc-driver-postgresql=={ADBC}",
    "pyarrow",
)
_DLT_OF_PYPI = (f"dlt[postgres,parquet]=={DLT}", "sqlalchemy<2.1", "psycopg2-binary")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>peers</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_ALONE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
_COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_DUCKDB = """
import sys, duckdb, duckdb_extension_postgres_scanner as scanner
from pathlib import Path
(file,) = Path(scanner.__file__).parent.rglob("*.duckdb_extension")
duckdb.sql(f"LOAD '{file}'")
statement, *databases = sys.argv[1:]
for name, uri in zip(("pg", "other"), databases):
    duckdb.sql(f"ATTACH '{uri}' AS {name} (TYPE postgres)")
duckdb.sql(statement)
"""
_CONNECTORX = """
import sys, connectorx, pyarrow.parquet
rows = connectorx.read_sql(sys.argv[1], "SELECT * FROM orders", return_type="arrow")
pyarrow.parquet.write_table(rows, sys.argv[2])
"""
_ADBC = """
import sys, adbc_driver_postgresql.dbapi as dbapi, pyarrow as pa
source, table, target = sys.argv[1:]

def batches(rows):  # ADBC reads numeric as text
    for batch in rows:
        columns = dict(zip(schema.names, batch.columns))
        columns["price"] = columns["price"].cast(pa.string()).cast(schema.field("price").type)
        yield pa.record_batch(list(columns.values()), schema=schema)

with dbapi.connect(source) as one, one.cursor() as cursor:
    cursor.execute(f"SELECT * FROM {table}")
    rows = cursor.fetch_record_batch()
    at = rows.schema.get_field_index("price")
    schema = rows.schema.set(at, pa.field("price", pa.decimal128(15, 2)))
    if target.endswith(".parquet"):
        import pyarrow.parquet as pq
        with pq.ParquetWriter(target, schema) as file:
            for batch in batches(rows):
                file.write_batch(batch)
    else:
        with dbapi.connect(target) as other, other.cursor() as writer:
            reader = pa.RecordBatchReader.from_batches(schema, batches(rows))
            writer.adbc_ingest(table, reader, mode="append")
            other.commit()
"""
_BY_DLT = """
import sys
import dlt
from dlt.sources.sql_database import sql_table

source, table, target, folder = sys.argv[1:]
if target.startswith("postgresql:"):
    to, how = dlt.destinations.postgres(target), {"loader_file_format": "csv"}
else:
    to, how = dlt.destinations.filesystem(bucket_url=target), {"loader_file_format": "parquet"}
line = dlt.pipeline("peer", destination=to, dataset_name="public", pipelines_dir=folder)
rows = sql_table(source, table=table, backend="pyarrow", chunk_size=100_000)
line.run(rows, table_name=table, write_disposition="append", **how)
"""


class MissingError(Exception):
    """A peer cannot be installed."""


def install(*command: object) -> None:
    done = subprocess.run(
        [str(each) for each in command], text=True, capture_output=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())[-300:]
        raise MissingError(f"{command[0]} failed: {said}")


def jars(name: str, wanted: Sequence[tuple[str, str, str]], *alone: tuple[str, str, str]) -> Path:
    """The folder of the jars `wanted` of Maven, with all that they need; `alone`: optional jars without that."""
    to = PEERS / name
    if not to.exists():
        if shutil.which("mvn") is None or shutil.which("javac") is None:
            raise MissingError("Maven and Java fetch and run it (Debian: maven, default-jdk)")
        listed = [_DEPENDENCY.format(*each, "") for each in wanted]
        optional = f"<classifier>optional</classifier>{_ALONE}"
        listed += [_DEPENDENCY.format(*each, optional) for each in alone]
        with tempfile.TemporaryDirectory() as folder:
            pom = Path(folder) / "pom.xml"
            pom.write_text(_POM.format("".join(listed)))
            to_jars = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}/jars"]
            install("mvn", "-B", "-q", "-f", pom, _COPY_JARS, *to_jars)
            PEERS.mkdir(parents=True, exist_ok=True)
            shutil.move(f"{folder}/jars", to)
    return to


def _environment(name: str, packages: Sequence[str]) -> Path:
    """The Python of an environment of its own with these packages."""
    to = PEERS / name
    python, complete = to / "bin" / "python", to / "installed"
    if not complete.exists() or complete.read_text() != "\n".join(packages):
        shutil.rmtree(to, ignore_errors=True)
        install(sys.executable, "-m", "venv", to)
        install(python, "-m", "pip", "install", "-q", *packages)
        complete.write_text("\n".join(packages))
    return python


@dataclass(frozen=True)
class Programs:
    """The command lines. A database is named by its URI, as `postgresql://user:password@host:port/database`."""

    python: Path
    dlt_python: Path
    sling_program: Path
    zeta: str
    """The class path of SeaTunnel."""

    @classmethod
    def installed(cls) -> "Programs":
        if not JDBC.exists():
            raise MissingError(f"{JDBC} (Debian: libpostgresql-jdbc-java)")
        python = _environment("programs", _OF_PYPI)
        (sling,) = (
            path for path in (PEERS / "programs").rglob("sling-linux-amd64") if path.is_file()
        )
        group = "org.apache.seatunnel"
        names = ("seatunnel-engine-server", "seatunnel-engine-client", "connector-jdbc")
        hadoop = (group, "seatunnel-hadoop3-3.1.4-uber", SEATUNNEL)
        wanted = [(group, each, SEATUNNEL) for each in names]
        wanted.append(("com.mysql", "mysql-connector-j", "8.0.33"))  # its dialect has types of it
        folder = jars(f"seatunnel-{SEATUNNEL}", wanted, hadoop)
        source = Path(__file__).with_name("Zeta.java")
        install("javac", "-cp", f"{folder}/*", "-d", folder / "classes", source)
        path = f"{folder}/classes:{folder}/*:{JDBC}"
        return cls(python, _environment("dlt", _DLT_OF_PYPI), sling, path)

    def adbc(self, source: str, table: str, target: object) -> Command:
        """Into the table of the same name, or a .parquet file."""
        return [self.python, "-c", _ADBC, source, table, target]

    def connectorx(self, source: str, file: Path) -> Command:
        return [self.python, "-c", _CONNECTORX, source, file]

    def dlt(self, source: str, table: str, target: object, folder: Path) -> Command:
        """Into the table of the same name, or a folder of Parquet files; `folder` is for its own files."""
        return [self.dlt_python, "-c", _BY_DLT, source, table, target, folder]

    def duckdb(self, statement: str, *databases: str) -> Command:
        """A statement about the databases `pg` and `other`."""
        return [self.python, "-c", _DUCKDB, statement, *databases]

    def sling(self, target: str, table: str, *source: object) -> Command:
        to = ["--tgt-conn", f"{target}?sslmode=disable", "--tgt-object", f"public.{table}"]
        return [self.sling_program, "run", *source, *to, "--mode", "truncate"]

    def seatunnel(
        self, file: Path, source: Mapping[str, Any], target: Mapping[str, Any]
    ) -> Command:
        """From a query into a table; `file` gets the job."""
        read = {"plugin_name": "Jdbc", "result_table_name": "rows", "fetch_size": 10_000, **source}
        write = {"plugin_name": "Jdbc", "source_table_name": "rows", "batch_size": 10_000, **target}
        write["generate_sink_sql"] = True
        job = {"env": {"job.mode": "BATCH", "parallelism": 1}, "source": [read], "sink": [write]}
        file.write_text(json.dumps(job))
        java = ["java", "-Xmx1g", "-Dhazelcast.local.localAddress=127.0.0.1"]
        return [*java, "-cp", self.zeta, "Zeta", file]
