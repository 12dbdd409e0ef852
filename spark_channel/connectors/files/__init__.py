"""Files: Parquet, CSV, JSON, Arrow and ORC, on disks, stores and servers."""

from typing import Any

from spark_channel.connectors.base.connector import ONCE, S3, AlsoReaches, Connector

__all__ = ["CONNECTORS"]

_FILES = "spark_channel.connectors.files"
_OF_FILES: dict[str, Any] = {
    "feed": ("files that arrive",),
    "secrets": ("storageOptions",),
    "maturity": "stable",
    "tested": "files on a disk",
    "delivery": ONCE,
    "also": (
        AlsoReaches("files on S3", "stable", S3),
        AlsoReaches("files on GCS, Azure", "preview", "emulators of the stores"),
        AlsoReaches("files on HDFS", "stable", "Hadoop 3.4, with and without Kerberos"),
        AlsoReaches(
            "files over SFTP, FTP",
            "stable",
            "OpenSSH, vsftpd, ProFTPD and pure-ftpd of Debian 12, without streams",
            delivery={"job": "at least once"},
        ),
    ),
}

CONNECTORS = (
    Connector(
        "parquet",
        f"{_FILES}.reader:ParquetReader",
        f"{_FILES}.writer:ParquetWriter",
        suffixes=(".parquet", ".pq"),
        about="Parquet files",
        **_OF_FILES,
    ),
    Connector(
        "csv",
        f"{_FILES}.reader:CsvReader",
        f"{_FILES}.writer:CsvWriter",
        suffixes=(".csv", ".csv.gz", ".tsv"),
        about="CSV files, also compressed",
        **_OF_FILES,
    ),
    Connector(
        "json",
        f"{_FILES}.reader:JsonReader",
        f"{_FILES}.writer:JsonWriter",
        suffixes=(".jsonl", ".ndjson", ".json", ".jsonl.gz"),
        about="JSON lines",
        **_OF_FILES,
    ),
    Connector(
        "arrow",
        f"{_FILES}.reader:ArrowReader",
        f"{_FILES}.writer:ArrowWriter",
        suffixes=(".arrow", ".feather", ".ipc"),
        about="Arrow IPC files",
        **_OF_FILES,
    ),
    Connector(
        "orc",
        f"{_FILES}.reader:OrcReader",
        f"{_FILES}.writer:OrcWriter",
        suffixes=(".orc",),
        about="ORC files",
        **_OF_FILES,
    ),
)
