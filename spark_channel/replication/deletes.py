"""What the target keeps of rows that the source deletes: nothing, the row with a mark, or every version of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from spark_channel.connectors.base.feed import (
    BEGIN,
    CLOSE_ALL,
    CLOSES,
    DELETES,
    ENDS,
    OPENS,
    OPERATION,
    READS,
    TRUNCATES,
)
from spark_channel.errors import SchemaError
from spark_channel.lazy import compute as pc
from spark_channel.transform.transformer import Transformer, prepare

__all__ = [
    "AT",
    "Deletes",
    "changed",
    "kept_key",
    "latest_time",
    "net_changes",
    "schema_of",
    "with_columns",
    "with_deletes",
]

Deletes = Literal["hard", "soft", "scd2"]

AT = "_commit_ts"
"""When the change was committed, as the log has it; an existing row has none."""
_OF_LOG = ("_lsn", AT, "_table")
_SOFT, _UNTIL = ENDS
_TIME = pa.timestamp("us", tz="UTC")
_TICK = timedelta(microseconds=1)


def kept_key(key: Sequence[str], deletes: Deletes) -> tuple[str, ...]:
    """The columns that identify a row of the target: with `scd2`, a key has several versions."""
    return (*key, BEGIN) if deletes == "scd2" else tuple(key)


def with_columns(columns: pa.Schema, deletes: Deletes) -> pa.Schema:
    """The target's columns.

    Raises:
        SchemaError: the source has a column of such a name.
    """
    added = {"hard": (), "soft": (_SOFT,), "scd2": (BEGIN, _UNTIL)}[deletes]
    clashing = {name.lower() for name in columns.names} & set(added)
    if clashing:
        raise SchemaError(
            f"deletes {deletes} adds {min(clashing)!r}, and the table has such a column: mask it with 'drop', or write "
            "deletes hard"
        )
    return pa.schema([*columns, *(pa.field(name, _TIME, nullable=name != BEGIN) for name in added)])


@dataclass(slots=True)
class _Version:
    """One state of a row, from `begin` to `end`. `row` is its place; `operation` is what the target does with it."""

    row: int
    operation: str
    begin: datetime
    end: datetime | None = None


@dataclass(slots=True)
class _KeyHistory:
    """What a delivery says of one key. `closed`: the place of a row of the key, and when the target's row ends.

    `emptied_at`: when the table was emptied last, which ends the target's row, too.
    """

    emptied_at: datetime | None = None
    closed: tuple[int, datetime] | None = None
    versions: list[_Version] = field(default_factory=list)

    def write(self, row: int, at: datetime, *, is_read: bool) -> None:
        last = self.versions[-1] if self.versions else None
        if is_read and last is not None and last.end is None:
            last.row = row  # the same row, in its state at the end of the delivery
            return
        if is_read and self.emptied_at is None:
            if last is None and self.closed is None:
                self.versions.append(_Version(row, OPENS[0], at))
            return
        at = at if self.emptied_at is None else max(at, self.emptied_at)
        at = at if last is None else max(at, last.begin + _TICK)  # a log may have whole seconds
        self._end(row, at)
        self.versions.append(_Version(row, "update", at))

    def delete(self, row: int, at: datetime) -> None:
        last = self.versions[-1] if self.versions else None
        self._end(row, at if last is None else max(at, last.begin))

    def empty(self, at: datetime) -> None:
        last = self.versions[-1] if self.versions else None
        if last is not None and last.end is None:
            last.end = max(at, last.begin)
        self.emptied_at = at

    def _end(self, row: int, at: datetime) -> None:
        last = self.versions[-1] if self.versions else None
        if last is not None and last.end is None:
            last.end = at
        if self.closed is None and self.emptied_at is None:
            self.closed = (row, at)


def with_deletes(
    rows: pa.Table,
    deletes: Deletes,
    key: Sequence[str],
    now: datetime,
    *,
    emptied_at: datetime | None = None,
    number: int = 0,
    after: datetime | None = None,
) -> pa.Table:
    """Changes in their order as `writeMode=apply` takes them. `now`: when existing rows count as begun.

    A row that the source deletes gets the end of its last state (`soft`), or of its last version (`scd2`); so do all
    rows at a truncate. `emptied_at`: the table was emptied then, before these changes. `number`: that of the delivery,
    which distinguishes changes of one second where a log has whole seconds. `after`: the latest time of the deliveries
    before, after which these changes are, whatever the log's clock says: it may have been set back, or be another
    server's.

    Raises:
        SchemaError: as `with_columns`.
    """
    with_columns(rows.schema, deletes)
    keys = zip(*(_column(rows, name).to_pylist() for name in key), strict=True)
    lives: dict[Any, _KeyHistory] = {}
    operations = rows[OPERATION].to_pylist()
    times = rows[AT].to_pylist()
    now = now.replace(microsecond=0)
    now = now if after is None else max(now, after)
    emptied_at = emptied_at if emptied_at is None or after is None else max(emptied_at, after)
    is_whole = not any(time.microsecond for time in times if time is not None)
    offset = timedelta(milliseconds=number % 1000 if is_whole else 0)
    last_emptied = emptied_at
    earliest = now if after is None else after + _TICK
    for row, (one, does, changed_at) in enumerate(zip(keys, operations, times, strict=True)):
        at, operation = now if changed_at is None else changed_at + offset, str(does).lower()
        at = at if after is None or changed_at is None else max(at, earliest)
        if operation in TRUNCATES:
            emptied_at, last_emptied = emptied_at or at, at
            for life in lives.values():
                life.empty(at)
            continue
        life = lives.setdefault(one, _KeyHistory(last_emptied))
        if operation in DELETES:
            life.delete(row, at)
        else:
            life.write(row, at, is_read=operation in READS)
    versions = (_marked if deletes == "soft" else _versions)(lives)
    places = pa.array([version.row for version in versions], pa.int64())
    out = rows.drop_columns([AT, OPERATION]).take(places)
    if deletes == "scd2":
        out = out.append_column(BEGIN, pa.array([version.begin for version in versions], _TIME))
    out = out.append_column(
        ENDS[deletes == "scd2"], pa.array([version.end for version in versions], _TIME)
    )
    out = out.append_column(
        OPERATION, pa.array([version.operation for version in versions], pa.string())
    )
    if emptied_at is None:
        return out
    return pa.concat_tables([_close_all(out.schema, emptied_at), out])


def latest_time(rows: pa.Table, before: datetime | None) -> datetime | None:
    """The latest time in `rows`, which `with_deletes` has made, or `before`."""
    names = [name for name in (BEGIN, _UNTIL) if name in rows.schema.names]
    times = [pc.max(rows[name]).as_py() for name in names]
    return max((time for time in (*times, before) if time is not None), default=None)


def net_changes(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The last state of each row that is there after the changes, and the keys of those that are not."""
    keys = zip(*(_column(rows, name).to_pylist() for name in key), strict=True)
    deleted = [str(operation).lower() in DELETES for operation in rows[OPERATION].to_pylist()]
    last = {one: row for row, one in enumerate(keys)}
    live = pa.array([row for row in last.values() if not deleted[row]], pa.int64())
    gone = pa.array([row for row in last.values() if deleted[row]], pa.int64())
    names = {name: _column(rows, name).take(gone) for name in key}
    return rows.drop_columns([OPERATION]).take(live), pa.table(names)


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """The column of this name, or else of one in another case.

    Raises:
        SchemaError: there is none.
    """
    names = rows.schema.names
    matches = (
        [name]
        if name in names
        else [candidate for candidate in names if candidate.lower() == name.lower()]
    )
    if not matches:
        raise SchemaError(
            f"the changes have no column {name!r}, which is in the table's key: it was renamed, or has another key now"
        )
    return rows.column(matches[0])


def _marked(lives: dict[Any, _KeyHistory]) -> list[_Version]:
    """The last state of each key."""
    versions = []
    for life in lives.values():
        if life.versions:
            last = life.versions[-1]
            versions.append(_Version(last.row, "update", last.begin, last.end))
        elif life.closed is not None:
            row, at = life.closed
            versions.append(_Version(row, CLOSES[0], at, at))
    return versions


def _versions(lives: dict[Any, _KeyHistory]) -> list[_Version]:
    """The end of the target's version, and all later versions. An end is a separate item among the versions."""
    versions = []
    for life in lives.values():
        if life.closed is not None:
            row, at = life.closed
            first = life.versions[0].begin if life.versions else at
            versions.append(_Version(row, CLOSES[0], min(first, at) - _TICK, at))
        versions += life.versions
    return versions


def _close_all(columns: pa.Schema, at: datetime) -> pa.Table:
    values: dict[str, Any] = {name: at for name in columns.names if name in (BEGIN, *ENDS)}
    values[OPERATION] = CLOSE_ALL[0]
    return pa.table(
        [pa.array([values.get(column.name)], column.type) for column in columns], schema=columns
    )


def schema_of(shapes: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of rows of all these shapes.

    Raises:
        SchemaError: a column has types that no type holds together.
    """
    try:
        return pa.unify_schemas(shapes, promote_options="permissive")
    except pa.ArrowException as error:
        kinds: dict[str, list[str]] = {}
        for column in (field for shape in shapes for field in shape):
            types = kinds.setdefault(column.name, [])
            types += [str(column.type)] if str(column.type) not in types else []
        names = ", ".join(
            f"{name!r} ({', '.join(types)})" for name, types in kinds.items() if types[1:]
        )
        raise SchemaError(
            f"the type of a column was changed, and changes of before and after that came together: {names}"
        ) from error


def changed(batch: pa.RecordBatch, steps: Sequence[Transformer]) -> pa.RecordBatch:
    """The rows as the target gets them. The columns that the log adds to a row are not masked."""
    names = [name for name in batch.schema.names if name not in (*_OF_LOG, OPERATION)]
    rows = batch.select(names)
    transformed = prepare(steps, rows.schema).run(rows).batch
    transformed = transformed.append_column(AT, batch.column(AT))
    return transformed.append_column(
        pa.field(OPERATION, pa.string()), batch.column(OPERATION).cast(pa.string())
    )
