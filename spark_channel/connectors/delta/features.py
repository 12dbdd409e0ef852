"""Table features that this connector would read or write wrongly: refused by name."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_channel.connectors.lake.columns import LENGTH_NOTE, is_length
from spark_channel.errors import UnsupportedError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "COMPLETE",
    "EARLIER_TYPE",
    "IN_SPARK",
    "UNSUPPORTED",
    "check_deletion_vectors",
    "check_readable",
    "check_writable",
]

_READ = {
    "timestampNtz",
    "deletionVectors",
    "columnMapping",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "appendOnly",
    "typeWidening",
    "typeWidening-preview",
}
_WRITTEN = {
    "timestampNtz",
    "deletionVectors",
    "columnMapping",
    "v2Checkpoint",
    "appendOnly",
    "invariants",
    "checkConstraints",
    "changeDataFeed",
    "generatedColumns",
}
"""Features that deltalake commits to, and whose use is looked for below."""

COMPLETE = "1.6.6"
"""The first deltalake that commits to all of these."""
UNSUPPORTED = re.compile(r"Unsupported table features required: \[([^\]]+)\]")
EARLIER_TYPE = re.compile(r"Failed to parse value ('.*') as '([^']+)'")

_IDENTITY_COLUMNS = 6
"""The writer version that demands them, without a list of features."""
_INNER_CHAR = re.compile(r"\bchar\(")
IN_SPARK = "use Delta Lake in Spark for this table"


def schema_fields(table: "DeltaTable") -> list[dict[str, Any]]:
    return list(json.loads(table.schema().to_json())["fields"])


def _features(names: Sequence[str]) -> str:
    return f"feature{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def check_readable(table: "DeltaTable", label: str) -> None:
    """
    Raises:
        UnsupportedError: names the feature.
    """
    protocol = table.protocol()
    strange = sorted(set(protocol.reader_features or ()) - _READ)
    if protocol.min_reader_version > 3 or strange:
        needs = f"needs the reader {_features(strange)}" if strange else "needs a newer reader"
        raise UnsupportedError(f"{label} {needs}, which this connector does not have; {IN_SPARK}")
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise UnsupportedError(
            f"{label} has delta.columnMapping.mode={mode}: its files use other names for columns; {IN_SPARK}"
        )
    folders = table.metadata().partition_columns
    for field in schema_fields(table):
        if "date" in _widened_from(field):
            raise UnsupportedError(
                f"column {field['name']!r} of {label} was a date, and is a timestamp now: older files have dates, "
                f"which are not read as timestamps here; {IN_SPARK}, or write it again there"
            )
        note = str(field.get("metadata", {}).get(LENGTH_NOTE, ""))
        if not is_length(note) and _INNER_CHAR.search(note):
            raise UnsupportedError(
                f"column {field['name']!r} of {label} has a CHAR inside another type ({note}), whose values Spark "
                f"fills up with blanks when it reads them; {IN_SPARK}"
            )
        if field["name"] in folders and field["type"] == "binary":
            raise UnsupportedError(
                f"{label} is partitioned by {field['name']!r}, which is binary: deltalake gives such values as the log "
                f"spells them; {IN_SPARK}"
            )


def _widened_from(part: Any) -> set[str]:
    """The earlier types of a column, or of a field inside it."""
    if isinstance(part, list):
        return set().union(*map(_widened_from, part))
    if not isinstance(part, dict):
        return set()
    changes = part.get("delta.typeChanges", ())
    return {change["fromType"] for change in changes}.union(*map(_widened_from, part.values()))


def check_deletion_vectors(table: "DeltaTable", label: str) -> None:
    """
    Raises:
        UnsupportedError: rows of a file are marked as deleted.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        with pa.RecordBatchReader.from_stream(table.deletion_vectors()) as vectors:
            has_vectors = any(batch.num_rows for batch in vectors)
    except DeltaError:
        has_vectors = True  # and they cannot even be read
    if has_vectors:
        raise UnsupportedError(
            f"{label} has deletion vectors, which mark rows of its files as deleted; "
            "write the files again with REORG TABLE ... APPLY (PURGE) in Spark, and read or overwrite it then"
        )


def check_writable(table: "DeltaTable", label: str, *, removes: bool) -> None:
    """
    Raises:
        UnsupportedError: names the feature.
    """
    check_readable(table, label)
    protocol, settings = table.protocol(), table.metadata().configuration
    needed = set(protocol.writer_features or ())
    if protocol.min_writer_version == _IDENTITY_COLUMNS:
        needed.add("identityColumns")
    strange = sorted(needed - _WRITTEN)
    if protocol.min_writer_version > 7 or strange:
        needs = f"needs the writer {_features(strange)}" if strange else "needs a newer writer"
        raise UnsupportedError(f"{label} {needs}, which this connector does not have; {IN_SPARK}")
    constraint = next((name for name in settings if name.startswith("delta.constraints.")), None)
    if constraint is not None:
        raise UnsupportedError(
            f"{label} has {constraint}, which only a query engine can check; {IN_SPARK}"
        )
    for field in schema_fields(table):
        for name, needs in (
            ("delta.invariants", "an invariant"),
            ("delta.generationExpression", "a generation expression"),
            (LENGTH_NOTE, "a length (CHAR or VARCHAR) inside another type, that only Spark checks"),
        ):
            note = field.get("metadata", {}).get(name)
            if note is not None and not (name == LENGTH_NOTE and is_length(str(note))):
                raise UnsupportedError(
                    f"column {field['name']!r} of {label} has {needs}; {IN_SPARK}"
                )
    if not removes:
        return
    if settings.get("delta.appendOnly", "").lower() == "true":
        raise UnsupportedError(
            f"{label} has delta.appendOnly=true, and the write replaces rows; append, or unset the property"
        )
    if settings.get("delta.enableChangeDataFeed", "").lower() == "true":
        raise UnsupportedError(
            f"{label} has delta.enableChangeDataFeed=true, and its change files would not name the rows that the "
            f"write replaces; append, or {IN_SPARK}"
        )
