"""Reads a table or a query through an ADBC driver."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from spark_channel.connectors.contracts import Reader
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.adbc.options import AdbcReadOptions
from spark_channel.connectors.sql.adbc.session import FAILURES, Session
from spark_channel.connectors.sql.adbc.tables import named, same_name, source_of
from spark_channel.connectors.sql.statements import Node, Source
from spark_channel.connectors.sql.stride import boundaries, parse_bound
from spark_channel.errors import OptionError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["AdbcReader"]

_BATCH_ROWS = 65_536


class AdbcReader(Reader):
    """One split, or ranges of `partitionColumn` of about equal rows. Types are those that the driver gives."""

    Options: ClassVar[type[ReadOptions]] = AdbcReadOptions
    options: AdbcReadOptions

    def __init__(self, options: AdbcReadOptions) -> None:
        super().__init__(options)
        self._dialect = options.sql_dialect()
        self._schema: pa.Schema | None = None

    def schema(self) -> pa.Schema:
        with self._session() as session:
            self._schema = self._known(session)
        return self._schema

    def split(self, advice: int) -> list[Split]:
        with self._session() as session:
            if self.options.partition_column is None:
                one = self._select([exp.Literal.number(1)]).limit(1)
                return [Split({"kind": "all"})] if session.rows(self._sql(one)) else []
            return self._ranges(session, max(1, advice))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self._session() as session:
            schema = self._known(session)
            query = self._select(self._columns(schema), self._conditions(split))
            try:
                with closing(session.cursor()) as cursor:
                    cursor.execute(self._sql(query))
                    with cursor.fetch_record_batch() as batches:
                        for batch in batches:
                            for start in range(0, batch.num_rows, self._rows(batch)):
                                yield _cast(batch.slice(start, self._rows(batch)), schema)
            except FAILURES as error:
                raise session.explain(error) from None

    def _session(self) -> Session:
        return Session(self.options, SourceError)

    def _known(self, session: Session) -> pa.Schema:
        if self._schema is not None:
            return self._schema
        everything = statements.select([exp.Star()], self._source(), [self._where()])
        try:
            with closing(session.cursor()) as cursor:
                cursor.execute(self._sql(everything))
                with cursor.fetch_record_batch() as batches:
                    found = batches.schema
        except FAILURES as error:
            raise session.explain(error) from None
        session.rollback()
        picked = [self._named(name, found.names, "columns") for name in self.options.columns or found.names]
        return pa.schema([pa.field(name, found.field(name).type) for name in picked])

    def _columns(self, schema: pa.Schema) -> list[Node]:
        return [self._source().column(name) for name in schema.names]

    def _source(self) -> Source:
        options = self.options
        if options.query is not None:
            return statements.subquery(statements.query(options.query, self._dialect, "query"), "source")
        assert options.dbtable is not None
        if options.dbtable.lstrip().startswith("("):
            return statements.source_query(options.dbtable, self._dialect, "dbtable")
        return source_of(*named(options.dbtable, self._dialect))

    def _where(self) -> Node | None:
        if self.options.where is None:
            return None
        source = self._source()
        tree = statements.condition(self.options.where, self._dialect, "where")
        return statements.bind_columns(tree, lambda column: source.column(column.name))

    def _select(self, columns: Sequence[Node], conditions: Sequence[Node] = ()) -> exp.Select:
        return statements.select(columns, self._source(), [self._where(), *conditions])

    def _sql(self, tree: Node) -> str:
        return tree.sql(self._dialect or None)

    @staticmethod
    def _named(wanted: str, names: Sequence[str], option: str) -> str:
        name = same_name(wanted, names)
        if name is None:
            raise OptionError(
                f"option {option!r} names {wanted!r}, which is not there; columns: {', '.join(names)}",
                option=option,
                got=wanted,
                takes=", ".join(names),
            )
        return name

    def _ranges(self, session: Session, advice: int) -> list[Split]:
        assert self.options.partition_column is not None
        everything = statements.select([exp.Star()], self._source()).limit(1)
        with closing(session.cursor()) as cursor:
            cursor.execute(self._sql(everything))
            with cursor.fetch_record_batch() as batches:
                found = batches.schema
        session.rollback()
        name = self._named(self.options.partition_column, found.names, "partitionColumn")
        column = self._source().column(name)
        counts = [exp.Count(this=exp.Star()), exp.Count(this=column.copy())]
        total, present = session.rows(self._sql(self._select(counts)))[0]
        splits: list[Split] = []
        if present:
            keys = self._keys(session, column, found.field(name).type, int(present), advice)
            for lower, upper in pairwise([None, *keys, None]):
                rows = int(present) if not keys else None
                splits.append(Split({"kind": "range", "key": name, "lower": lower, "upper": upper}, rows))
        if total > present:
            splits.append(Split({"kind": "null", "key": name}, int(total - present)))
        return splits

    def _keys(
        self, session: Session, column: exp.Column, kind: pa.DataType, count: int, advice: int
    ) -> list[str]:
        """The inner boundaries, as SQL."""
        options = self.options
        if options.lower_bound is not None and options.upper_bound is not None:
            lower = parse_bound(options.lower_bound, kind, "lowerBound")
            upper = parse_bound(options.upper_bound, kind, "upperBound")
            return [self._sql(exp.convert(str(each) if not isinstance(each, int) else each))
                    for each in boundaries(lower, upper, advice)]  # fmt: skip
        advice = min(advice, count)
        places = sorted({count * part // advice + 1 for part in range(1, advice)})
        if not places:
            return []
        number = exp.Window(this=exp.RowNumber(), order=exp.Order(expressions=[column.copy()]))
        here = exp.Not(this=exp.Is(this=column.copy(), expression=exp.Null()))
        ranked = self._select([exp.alias_(column.copy(), "k"), exp.alias_(number, "n")], [here]).subquery(
            "ranked"
        )
        wanted = exp.In(this=exp.column("n"), expressions=[exp.Literal.number(place) for place in places])
        rows = session.rows(self._sql(exp.select("k").from_(ranked).where(wanted).order_by("n")))
        least = session.value(self._sql(self._select([exp.Min(this=column.copy())])))
        found: list[Any] = []
        for (value,) in rows:
            if isinstance(value, float) and not math.isfinite(value):
                continue  # no literal says it in every dialect; such rows belong to the first range, or the last
            if value != (found[-1] if found else least):
                found.append(value)
        return [self._literal(value, kind) for value in found]

    def _literal(self, value: Any, kind: pa.DataType) -> str:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return self._sql(exp.convert(value))
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_decimal(kind):
            return self._sql(exp.Literal.string(str(value)))
        raise OptionError(
            f"option 'partitionColumn' names a column of type {kind}; it takes one of numbers, texts, dates or "
            "timestamps",
            option="partitionColumn",
        )

    def _conditions(self, split: Split) -> list[Node]:
        params = split.params
        if params["kind"] == "all":
            return []
        column = self._source().column(params["key"])
        if params["kind"] == "null":
            return [exp.Is(this=column, expression=exp.Null())]
        found: list[Node] = []
        for bound, compare in ((params["lower"], exp.GTE), (params["upper"], exp.LT)):
            if bound is not None:
                literal = exp.maybe_parse(bound, dialect=self._dialect or None)
                found.append(compare(this=column.copy(), expression=literal))
        return found or [exp.Not(this=exp.Is(this=column, expression=exp.Null()))]

    def _rows(self, batch: pa.RecordBatch) -> int:
        rows = self.options.fetch_size or self.fetch_size.rows or _BATCH_ROWS
        if self.fetch_size.nbytes is not None:
            rows = min(rows, self.fetch_size.nbytes * max(1, batch.num_rows) // max(1, batch.nbytes))
        return max(1, rows)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for array, field in zip(batch.columns, schema, strict=True):
        if array.type.equals(field.type):
            arrays.append(array)
            continue
        try:
            arrays.append(pc.cast(array, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(
                f"column {field.name!r} began as {field.type} and goes on as {array.type}: {error}; make it one type "
                "in 'query'"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
