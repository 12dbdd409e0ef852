"""Positions of a binary log's feed as tokens, with the part of the base that was read and the tables as they were."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from spark_channel.connectors.base.feed import Token
from spark_channel.connectors.mysql.dialect import MysqlDialect, MysqlTable
from spark_channel.connectors.mysql.log.position import GtidSet, gtids_of
from spark_channel.connectors.mysql.log.schema import charsets, logs_cascades
from spark_channel.connectors.mysql.log.table import RESET, FollowedTable
from spark_channel.connectors.mysql.options import MysqlReadOptions
from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.connectors.sql.catalog import Column, ReadColumn
from spark_channel.connectors.sql.feed.incremental_snapshot import BaseProgress, SeveralTables
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.statements import custom_kinds
from spark_channel.errors import SourceError

__all__ = [
    "BinlogPlace",
    "BinlogToken",
    "LogServer",
    "TablesToken",
    "followed",
    "noted_table",
    "recalled",
]

_NAME, _BASE, _TABLE, _TABLES = "gtid", "base", "table", "tables"


@dataclass(frozen=True, slots=True)
class BinlogToken:
    """`base` is None where all of it was read, or none belongs to the feed.

    `table`: what `noted_table` gave; None = not known.
    """

    position: GtidSet
    base: BaseProgress | None = None
    table: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, token: Token, gtids: type[GtidSet]) -> "BinlogToken":
        """
        Raises:
            SourceError: no token of such a feed.
        """
        try:
            text: Any = token[_NAME]
            table: Any = token.get(_TABLE)
            if set(token) - {_NAME, _BASE, _TABLE} or not isinstance(text, str):
                raise ValueError(token)
            if not isinstance(table, Mapping | None):
                raise TypeError(table)
            base: Any = token.get(_BASE)
            return cls(
                gtids.parse(text), None if base is None else BaseProgress.from_noted(base), table
            )
        except (KeyError, TypeError, ValueError):
            raise SourceError(
                f"the checkpoint {dict(token)!r} is not a position in this server's binary log: "
                f"it is damaged, or of another source. {RESET}"
            ) from None

    def several(self) -> "TablesToken":
        """As a list of one table, which has no name in it."""
        if self.base is None:
            return TablesToken(self.position, {"": BinlogPlace({})})
        since = type(self.position).parse(self.base.since)
        progress = BinlogPlace({}, since, replace(self.base, waited=0))
        return TablesToken(self.position, {"": progress}, self.base.waited)

    @classmethod
    def single(cls, token: "TablesToken") -> "BinlogToken":
        """What `several` gave."""
        (progress,) = token.tables.values()
        base = None if progress.base is None else replace(progress.base, waited=token.waited)
        return cls(token.position, base)

    def token(self) -> Token:
        noted: dict[str, Any] = {_NAME: str(self.position)}
        if self.base is not None:
            noted[_BASE] = self.base.noted()
        if self.table is not None:
            noted[_TABLE] = dict(self.table)
        return noted


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """One table of several. `table`: what `noted_table` gave. `since` is None when its existing rows are read, `base`
    until their reading begins.

    Its changes up to `since` do not belong to the feed. `again`: where it was to be read once more: if the log cannot
    be followed up to there, the changes of before are left out.
    """

    table: Mapping[str, Any]
    since: GtidSet | None = None
    base: BaseProgress | None = None
    again: GtidSet | None = None
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class TablesToken(SeveralTables):
    """A position in the log, and what was read of each table there."""

    position: GtidSet
    tables: Mapping[str, BinlogPlace]
    waited: int = 0
    removed: tuple[str, ...] = ()

    def due(self) -> list[str]:
        """The tables whose existing rows may be read next.

        The first ones wait until the position has passed what does not belong to the feed: a chunk drops keys that
        change there, whose changes are not delivered.
        """
        return [
            name
            for name, progress in self.tables.items()
            if progress.since is not None
            and (
                progress.base is not None
                or all(
                    at is None or self.position.covers(at)
                    for at in (progress.since, progress.again)
                )
            )
        ]

    def joined(self, name: str, table: Mapping[str, Any], at: GtidSet) -> "TablesToken":
        """With one more table, whose existing rows and later changes are read.

        Raises:
            TunnelError: it is there already.
        """
        self.check_new(name)
        return self.placed(name, BinlogPlace(table, self.position.union(at)))

    def restarted(self, name: str, table: Mapping[str, Any], at: GtidSet) -> "TablesToken":
        """With the existing rows of a table to be read once more, with its present columns.

        Raises:
            TunnelError: it is not there.
        """
        since = self.position.union(self.known(name).since or self.position)
        return self.placed(name, BinlogPlace(table, since, again=since.union(at)))

    def forgiven(self, name: str) -> "TablesToken | None":
        """Without the changes of a table before the place where it was to be read once more; None: it was not."""
        progress = self.tables[name]
        if progress.again is None or self.position.covers(progress.again):
            return None
        forgiven = replace(progress, since=progress.again, again=None, is_dropped=False)
        return self.placed(name, forgiven)

    def token(self) -> Token:
        noted: dict[str, Any] = {
            _NAME: str(self.position),
            _TABLES: {name: _noted_place(progress) for name, progress in self.tables.items()},
        }
        if self.removed:
            noted["removed"] = list(self.removed)
        if not self.is_read:
            noted[_BASE] = {"waited": self.waited}
        return noted

    @classmethod
    def read(cls, token: Token, gtids: type[GtidSet]) -> "TablesToken":
        """
        Raises:
            SourceError: no token of such a feed.
        """
        try:
            tables = {
                str(name): _place_of(entry, gtids) for name, entry in dict(token[_TABLES]).items()
            }
            removed = tuple(token.get("removed", ()))
            waited = dict(token.get(_BASE, {})).get("waited", 0)
            texts = (token[_NAME], *removed)
            if not tables or not isinstance(waited, int):
                raise ValueError(token)
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(token)
            return cls(gtids.parse(texts[0]), tables, waited, removed)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise SourceError(
                f"the checkpoint {str(dict(token))[:200]} is not a position of several tables "
                "in this server's binary log: it is damaged, or of another source. Reset the tunnel"
            ) from None


def _noted_place(progress: BinlogPlace) -> dict[str, Any]:
    noted: dict[str, Any] = {_TABLE: dict(progress.table)}
    for name, at in (("since", progress.since), ("again", progress.again)):
        if at is not None:
            noted[name] = str(at)
    if progress.base is not None:
        noted[_BASE] = progress.base.noted()
    if progress.is_dropped:
        noted["dropped"] = True
    return noted


def _place_of(noted: Mapping[str, Any], gtids: type[GtidSet]) -> BinlogPlace:
    since, again = (
        None if noted.get(name) is None else gtids.parse(noted[name]) for name in ("since", "again")
    )
    base = noted.get(_BASE)
    if not isinstance(noted[_TABLE], Mapping) or (base is not None and since is None):
        raise ValueError(noted)
    return BinlogPlace(
        noted[_TABLE],
        since,
        None if base is None else BaseProgress.from_noted(base),
        again,
        noted.get("dropped") is True,
    )


@dataclass(frozen=True, slots=True)
class LogServer:
    """What a server says of all its tables; see `FollowedTable`."""

    gtids: type[GtidSet]
    charsets: Mapping[int, str]
    folds: bool
    logs_cascades: bool

    @classmethod
    def look_up(cls, session: MysqlSession) -> "LogServer":
        folds = str(session.value("SELECT @@lower_case_table_names")) != "0"
        return cls(gtids_of(session.is_mariadb), charsets(session), folds, logs_cascades(session))


def followed(server: LogServer, source: ReadSource, options: MysqlReadOptions) -> FollowedTable:
    """The table as the catalog has it."""
    table = cast(MysqlTable, source.table)
    key = table.primary or (table.unique[0] if table.unique else ())
    return FollowedTable(
        database=table.schema,
        name=table.name,
        label=source.label,
        columns=source.columns,
        names=tuple(source.names),
        key=key,
        charsets=server.charsets,
        gtids=server.gtids,
        zero_dates=options.zero_dates == "null",
        folds=server.folds,
        logs_cascades=server.logs_cascades,
        generated=frozenset(column.name for column in table.columns if column.generated),
        apart=tuple(dict.fromkeys(name for index in table.held for name in index)),
    )


def noted_table(table: FollowedTable) -> dict[str, Any]:
    """What a position keeps of the table, so that its range can be read after the table was dropped."""
    return {
        "database": table.database,
        "name": table.name,
        "columns": [[column.name, column.declared] for column in table.columns],
        "names": list(table.names),
        "key": list(table.key),
        "apart": list(table.apart),
        "generated": sorted(table.generated),
    }


def recalled(server: LogServer, reader: SqlReader, noted: Mapping[str, Any]) -> FollowedTable:
    """The table as a position has it.

    Raises:
        SourceError: it was damaged.
    """
    options, dialect = cast(MysqlReadOptions, reader.options), cast(MysqlDialect, reader.dialect)
    try:
        declared = {str(name): str(kind) for name, kind in noted["columns"]}
        custom = custom_kinds(options.custom_schema, list(declared), dialect.same_name)
        columns = [
            ReadColumn(name, kind, custom.get(name) or dialect.arrow_type(Column(name, kind)), "")
            for name, kind in declared.items()
        ]
        database, name = str(noted["database"]), str(noted["name"])
        names, key, generated = (
            tuple(map(str, noted[field])) for field in ("names", "key", "generated")
        )
        apart = tuple(map(str, noted.get("apart", ())))
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"the checkpoint's columns {str(dict(noted))[:200]} are damaged: reset the tunnel, or begin with a new "
            "checkpoint directory"
        ) from error
    return FollowedTable(
        database=database,
        name=name,
        label=f"table {name!r}",
        columns=tuple(columns),
        names=names,
        key=key,
        charsets=server.charsets,
        gtids=server.gtids,
        zero_dates=options.zero_dates == "null",
        folds=server.folds,
        logs_cascades=server.logs_cascades,
        generated=frozenset(generated),
        apart=apart,
    )
