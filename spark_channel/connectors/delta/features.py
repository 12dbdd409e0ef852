"""Table features that this connector would read or write wrongly: refused by name."""

import json
from typing import TYPE_CHECKING, Any

from spark_channel.errors import UnsupportedError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["check_deletion_vectors", "check_readable", "check_writable"]

_READ = {
    "timestampNtz", "deletionVectors", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck", "appendOnly",
    "typeWidening", "typeWidening-preview",
}  # fmt: skip
_WRITTEN = {
    "timestampNtz", "deletionVectors", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck", "appendOnly",
    "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns", "domainMetadata",
    "inCommitTimestamp",
}  # fmt: skip
"""Features whose use is looked for below, or that change nothing for a writer of whole files."""

_IN_SPARK = "use Delta Lake in Spark for this table"


def _fields(table: "DeltaTable") -> list[dict[str, Any]]:
    return list(json.loads(table.schema().to_json())["fields"])


def check_readable(table: "DeltaTable", shown: str) -> None:
    """
    Raises:
        UnsupportedError: names the feature.
    """
    protocol = table.protocol()
    strange = sorted(set(protocol.reader_features or ()) - _READ)
    if protocol.min_reader_version > 3 or strange:
        what = f"needs the reader feature {strange[0]!r}" if strange else "needs a newer reader"
        raise UnsupportedError(f"{shown} {what}, which this connector does not have; {_IN_SPARK}")
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise UnsupportedError(
            f"{shown} has delta.columnMapping.mode={mode}: its files use other names for columns; {_IN_SPARK}"
        )
    folders = table.metadata().partition_columns
    for field in _fields(table) if folders else ():
        if field["name"] in folders and field["type"] == "binary":
            raise UnsupportedError(
                f"{shown} is partitioned by {field['name']!r}, which is binary: deltalake gives such values as the log "
                f"spells them; {_IN_SPARK}"
            )


def check_deletion_vectors(table: "DeltaTable", shown: str) -> None:
    """
    Raises:
        UnsupportedError: rows of a file are marked as deleted.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        with pa.RecordBatchReader.from_stream(table.deletion_vectors()) as found:
            there = any(batch.num_rows for batch in found)
    except DeltaError:
        there = True  # and they cannot even be read
    if there:
        raise UnsupportedError(
            f"{shown} has deletion vectors, which mark rows of its files as deleted; "
            "write the files again with REORG TABLE ... APPLY (PURGE) in Spark, and read or overwrite it then"
        )


def check_writable(table: "DeltaTable", shown: str, *, removes: bool) -> None:
    """
    Raises:
        UnsupportedError: names the feature.
    """
    check_readable(table, shown)
    protocol, settings = table.protocol(), table.metadata().configuration
    strange = sorted(set(protocol.writer_features or ()) - _WRITTEN)
    if protocol.min_writer_version > 7 or strange:
        what = f"needs the writer feature {strange[0]!r}" if strange else "needs a newer writer"
        raise UnsupportedError(f"{shown} {what}, which this connector does not have; {_IN_SPARK}")
    constraint = next((name for name in settings if name.startswith("delta.constraints.")), None)
    if constraint is not None:
        raise UnsupportedError(f"{shown} has {constraint}, which only a query engine can check; {_IN_SPARK}")
    if settings.get("delta.enableInCommitTimestamps", "").lower() == "true":
        raise UnsupportedError(f"{shown} has delta.enableInCommitTimestamps; {_IN_SPARK}")
    for field in _fields(table):
        for name, what in (
            ("delta.invariants", "an invariant"),
            ("delta.generationExpression", "a generation expression"),
            ("delta.identity.start", "identity values"),
        ):
            if name in field.get("metadata", {}):
                raise UnsupportedError(f"column {field['name']!r} of {shown} has {what}; {_IN_SPARK}")
    if not removes:
        return
    if settings.get("delta.appendOnly", "").lower() == "true":
        raise UnsupportedError(
            f"{shown} has delta.appendOnly=true, and the write replaces rows; append, or unset the property"
        )
    if settings.get("delta.enableChangeDataFeed", "").lower() == "true":
        raise UnsupportedError(
            f"{shown} has delta.enableChangeDataFeed=true, and its change files would not tell which rows the write "
            f"replaces; append, or {_IN_SPARK}"
        )
