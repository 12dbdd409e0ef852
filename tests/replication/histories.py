"""A source and a target in SQLite whose runs are killed or overtaken, and an independent model of what must arrive."""

import hashlib
import hmac
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.connectors.sqlite.session import SqliteSession

KEY = "0123456789abcdef0123"
NOTHING_YET = -(10**30)
Row = frozenset[tuple[str, Any]]
"""A row as its values that are not NULL."""
Said = Mapping[str, tuple[str, str]]
"""The state of each table in a report, and why."""
Wider = Callable[[str, str], str | None]
"""The type to which the target changes a column of the first one for rows of the second; None: it cannot."""


@dataclass(frozen=True)
class Stream:
    """What the file says of a table. `key`: the columns that identify a row, for an upsert."""

    mode: str = "full"
    update_key: str = ""
    key: bool = False
    tables: str = "evolve"
    columns: str = "evolve"
    data_type: str = "freeze"
    masks: tuple[tuple[str, str], ...] = ()
    where: int | None = None
    load_columns: bool = False

    def entry(self) -> dict[str, Any]:
        made: dict[str, Any] = {"mode": self.mode, "load_columns": str(self.load_columns).lower()}
        made["contract"] = {
            "tables": self.tables,
            "columns": self.columns,
            "data_type": self.data_type,
        }
        if self.masks:
            made["columns"] = {f"*.{name}": mask for name, mask in self.masks}
        if self.update_key:
            made["update_key"] = self.update_key
        if self.key:
            made["primary_key"] = "id"
        if self.where is not None:
            made["where"] = f"id <> {self.where}"
        return made

    @property
    def definition(self) -> object:
        """What the record of an incremental table belongs to."""
        return (self.update_key, self.key, self.where, self.masks)


@dataclass(frozen=True)
class Snapshot:
    """A table of the source: types by column, and the rows. `unique`: the columns that are unique alone."""

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Held:
    """The target's part of a table. `columns` None: no table. `at`: by definition, up to where rows were copied.

    `keyed`: the table was made with a unique key.
    """

    columns: Mapping[str, str] | None = None
    rows: Sequence[Row] = ()
    at: Mapping[object, int | None] = field(default_factory=dict)
    keyed: bool = False


def after(
    held: Held, stream: Stream, found: Snapshot, wider: Wider, *, refresh: bool
) -> Iterator[tuple[str, Held]]:
    """What a run that sees `found` may make of `held`: the table's state in the report, and the target."""
    overwrite, rows, at = True, list(found.rows), dict(held.at)
    lacks_key = "id" not in found.columns  # it was renamed
    if stream.where is not None:
        if lacks_key:
            yield from _without_key(held, stream, at, refresh=refresh)
            return
        rows = [each for each in rows if each["id"] != stream.where]
    if stream.mode == "incremental":
        known = stream.definition in at
        if known and (refresh or held.columns is None):
            if held.columns is not None or stream.tables == "evolve":
                at[stream.definition] = None
                held = replace(held, at=dict(at))
            previous = None
        else:
            previous = at.get(stream.definition)
        if not known and held.columns is not None and not refresh:
            yield "parked", held
            return
        if stream.update_key not in found.columns:
            yield "parked", held
            return
        if any(each[stream.update_key] is None for each in found.rows):
            yield "parked", held
            return
        upto = _upto(stream, found.rows)
        # More rows may have got the highest value.
        ties = stream.key and stream.update_key == "k" and upto is not None and upto == previous
        if upto is None or (previous not in (None, NOTHING_YET) and upto <= previous and not ties):
            if previous is not None:
                yield "unchanged", held
                return
            rows, upto = [], NOTHING_YET
        overwrite = previous is None
        values = [(each[stream.update_key], each) for each in rows]
        low = NOTHING_YET if previous is None else previous
        rows = [
            each
            for value, each in values
            if value <= upto and (value >= low if stream.key else value > low)
        ]
        at[stream.definition] = upto
    masked = _masked(stream, found.columns, rows)
    if masked is None:
        yield "parked", held
        return
    columns, made = masked
    keyless = stream.key and lacks_key
    if held.columns is None:
        if stream.tables == "freeze" or (keyless and stream.tables == "evolve"):
            yield "parked", held
        elif stream.tables != "evolve":
            yield "unchanged", held
        else:
            keyed = stream.mode == "incremental" and stream.key
            yield "done", Held(columns, _sorted(made), _others_void(at, stream), keyed)
        return
    if overwrite:
        at = _others_void(at, stream)
    if stream.mode == "incremental" and stream.key and (keyless or not held.keyed):
        yield "parked", held
        return
    yield from _within(held, stream, columns, made, at, wider, overwrite=overwrite)


def _without_key(
    held: Held, stream: Stream, at: dict[object, int | None], *, refresh: bool
) -> Iterator[tuple[str, Held]]:
    """The condition names a column that is not there. A record may be forgotten before that is seen."""
    yield "parked", held
    if held.columns is None and stream.tables in ("discard_value", "discard_row"):
        yield "unchanged", held
    if stream.definition in at and (refresh or held.columns is None):
        yield "parked", replace(held, at={**at, stream.definition: None})


def _others_void(at: Mapping[object, int | None], stream: Stream) -> dict[object, int | None]:
    """The rows of other definitions are not in the table any more, so their records hold no more."""
    kept = stream.definition if stream.mode == "incremental" else None
    return {each: upto for each, upto in at.items() if each == kept}


def _upto(stream: Stream, rows: Sequence[Mapping[str, Any]]) -> int | None:
    values = sorted({each[stream.update_key] for each in rows})
    if stream.update_key == "k" and not stream.key:
        values = values[:-1]  # more rows may get the highest value
    return values[-1] if values else None


def _masked(
    stream: Stream, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, str], list[dict[str, Any]]] | None:
    masks = dict(stream.masks)
    kinds: dict[str, str] = {}
    for name, kind in columns.items():
        mask = masks.get(name.lower())
        if mask == "drop":
            continue
        if mask == "partial(2)" and kind != "TEXT":
            return None
        kinds[name.lower()] = kind if mask in (None, "null") else "TEXT"
    made = [
        {
            name.lower(): mask_value(masks.get(name.lower()), value)
            for name, value in each.items()
            if name.lower() in kinds
        }
        for each in rows
    ]
    return kinds, made


def mask_value(mask: str | None, value: Any) -> Any:
    if mask is None or value is None:
        return value
    text = _text(value)
    if mask == "null":
        return None
    if mask == "sha256":
        return hashlib.sha256(text.encode()).hexdigest()
    if mask.startswith("hmac"):
        return hmac.new(KEY.encode(), text.encode(), "sha256").hexdigest()
    return "*" * len(text) if len(text) <= 2 else "*" * (len(text) - 2) + text[-2:]


def _within(
    held: Held,
    stream: Stream,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    at: Mapping[object, int | None],
    wider: Wider,
    *,
    overwrite: bool,
) -> Iterator[tuple[str, Held]]:
    """The rows in a table that is there, as the contract says."""
    assert held.columns is not None
    there = dict(held.columns)
    new = [name for name in columns if name not in there]
    changed = [
        name for name, kind in columns.items() if name in there and not _holds(there[name], kind)
    ]
    if (new and stream.columns == "freeze") or (changed and stream.data_type == "freeze"):
        yield "parked", held
        return
    if stream.data_type == "evolve":
        widened = {name: wider(there[name], columns[name]) for name in changed}
        if None in widened.values():
            yield "parked", held
            return
        there |= {name: kind for name, kind in widened.items() if kind is not None}
    made = []
    for each in rows:
        kept: dict[str, Any] = {}
        leave = False
        for name, value in each.items():
            if name in new and stream.columns != "evolve":
                leave |= value is not None and stream.columns == "discard_row"
                continue
            fits, stored = _stored(there.get(name, columns[name]), value)
            leave |= not fits and stream.data_type == "discard_row"
            kept[name] = stored
        if not leave:
            made.append(kept)
    if stream.columns == "evolve":
        there |= {name: columns[name] for name in new}
    if overwrite:
        after_rows = _sorted(made)
    elif stream.key:
        by_id = {dict(each)["id"]: dict(each) for each in held.rows}
        for each in made:
            by_id.setdefault(each["id"], {}).update(each)
        after_rows = _sorted(list(by_id.values()))
    else:
        after_rows = _sorted([*(dict(each) for each in held.rows), *made])
    yield "done", Held(there, after_rows, at, held.keyed)


_NARROWER = {"REAL": ("INTEGER", "INT4"), "INTEGER": ("INT4",)}


def _holds(there: str, arriving: str) -> bool:
    return arriving == there or arriving in _NARROWER.get(there, ())


def _stored(kind: str, value: Any) -> tuple[bool, Any]:
    """Whether a column of the target takes the value, and what it holds then."""
    if value is None:
        return True, None
    try:
        if kind in ("INTEGER", "INT4"):
            return (True, int(value)) if float(value) == int(float(value)) else (False, None)
        return True, float(value) if kind == "REAL" else _text(value)
    except ValueError:
        return False, None


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _sorted(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    made = [frozenset((n, v) for n, v in each.items() if v is not None) for each in rows]
    return sorted(made, key=lambda row: sorted(f"{n}={_text(v)}" for n, v in row))


def plain_rows(
    names: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> tuple[set[str] | None, list[Row]]:
    """The columns and rows of a table of the target, without the columns of the runs; None: it has no columns."""
    own = {"_loaded_at", "_run_id"}
    made = [dict(zip(names, each, strict=True)) for each in rows]
    for each in made:
        assert ("_run_id" in names) == bool(each.get("_run_id")), each
    plain = [{n: v for n, v in each.items() if n not in own} for each in made]
    return (set(names) - own if names else None), _sorted(plain)


class World:
    """Both databases, in their own folder."""

    def __init__(self, folder: Path, streams: Mapping[str, Stream]) -> None:
        self.folder = folder
        self.streams = dict(streams)
        self._source = sqlite3.connect(
            folder / "source.db", isolation_level=None, check_same_thread=False
        )
        self._source.execute("PRAGMA journal_mode = WAL")
        self._source.execute("PRAGMA synchronous = OFF")

    def close(self) -> None:
        self._source.close()

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._source.execute(statement, values).fetchall()

    def target(self, statement: str) -> None:
        with closing(sqlite3.connect(self.folder / "target.db")) as connection:
            connection.execute(statement)
            connection.commit()

    def snapshot(self, table: str) -> Snapshot | None:
        cursor = self._source.execute(f'PRAGMA table_info("{table}")')
        columns = {each[1]: each[2] for each in cursor.fetchall()}
        if not columns:
            return None
        rows = self._source.execute(f'SELECT * FROM "{table}"').fetchall()
        return Snapshot(columns, [dict(zip(columns, each, strict=True)) for each in rows])

    def arrived(self, table: str) -> tuple[set[str] | None, list[Row]]:
        """The columns and rows of the target."""
        with closing(sqlite3.connect(self.folder / "target.db")) as connection:
            found = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
            names = [each[1].lower() for each in found]
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall() if names else []
        return plain_rows(names, rows)

    def file(self) -> dict[str, Any]:
        options = {"source_options": {"numPartitions": "1"}}
        return {
            "source": {"url": f"sqlite:{self.folder}/source.db"},
            "target": {"url": f"sqlite:{self.folder}/target.db", "lockTimeout": "1"},
            "defaults": {"object": "{table}"},
            "streams": {name: each.entry() | options for name, each in self.streams.items()},
            "parallel": "1",
        }

    def stream(self, table: str) -> str:
        """The stream of a table in the file."""
        return table

    def wider(self, there: str, arriving: str) -> str | None:
        """See `Wider`: SQLite cannot change a column's type."""
        return None

    def half_evolved(self, old: Held, new: Held) -> Iterator[Held]:
        """What a run that is killed leaves between its changes of the table and of its rows: SQLite has one step."""
        yield from ()

    def run(self, select: Sequence[str], *, refresh: bool = False) -> Said:
        streams = {self.stream(each): each for each in select}
        report = spark_channel.replicate(
            None, self.file(), select=list(streams), full_refresh=refresh
        )
        return {streams[each.stream]: (each.state, each.why) for each in report.tables}

    def run_overtaken(
        self, select: Sequence[str], at: int, between: Callable[[], object]
    ) -> list[Said]:
        """Run; before its statement `at`, call `between` and run again. Reports of the second run and of the first."""
        inner: list[Said] = []

        def overtake() -> None:
            between()
            inner.append(self.run(select))

        with at_statement(at, overtake, _STATEMENTS, _in_transaction):
            outer = self.run(select)
        return [*inner, outer]

    def run_killed(self, select: Sequence[str], at: int) -> bool:
        """Run in a process that is killed before its statement `at`; return whether it came so far."""
        child = os.fork()
        if not child:
            code = 1
            try:
                with at_statement(at, lambda: os._exit(9)):
                    self.run(select)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, 9), code
        return code == 9


_STATEMENTS = tuple((SqliteSession, name) for name in ("rows", "insert", "stream"))


def _in_transaction(session: Any) -> bool:
    """Whether another writer would wait for the session: SQLite has one at a time."""
    return session._connection is not None and bool(session._connection.in_transaction)


@contextmanager
def at_statement(
    number: int,
    act: Callable[[], object],
    statements: Sequence[tuple[type, str]] = _STATEMENTS,
    busy: Callable[[Any], bool] = lambda session: False,
) -> Iterator[None]:
    """Call `act` once before the statement of that number, over all sessions, or a later one of a session not `busy`.

    `statements`: classes and their methods that send one.
    """
    seen, lock = Counter[str](), threading.Lock()

    def counted(method: Any) -> Any:
        def made(session: Any, *given: Any, **named: Any) -> Any:
            with lock:
                seen["all"] += 1
                due = seen["all"] >= number and not seen["acted"] and not busy(session)
                seen["acted"] += due
            if due:
                act()
            return method(session, *given, **named)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for kind, name in statements:
            patch.setattr(kind, name, counted(getattr(kind, name)))
        yield
