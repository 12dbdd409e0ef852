"""The lines of LOAD DATA that come of a table in several batches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_channel.connectors.mysql.write.load_data import RowSender
from spark_channel.connectors.sql.catalog import Column, WriteColumn
from spark_channel.connectors.sql.write.encode import BadValueError


class Session:
    """Takes all rows, and keeps what was sent."""

    local_infile, lenient, most_packet = True, False, 1 << 20

    def __init__(self) -> None:
        self.sent, self.loads = b"", 0

    @contextmanager
    def may_send(self, _name: str, lines: Iterable[bytes]) -> Iterator[None]:
        self.sent += b"".join(lines)
        yield

    def affected(self, _sql: str) -> tuple[int, int]:
        self.loads += 1
        return self.sent.count(b"\n"), 0


def _columns(**kinds: tuple[pa.DataType, str]) -> list[WriteColumn]:
    return [
        WriteColumn(name, Column(name, declared), kind) for name, (kind, declared) in kinds.items()
    ]


def _sender(session: Session, columns: list[WriteColumn]) -> RowSender:
    return RowSender(cast(Any, session), "`t`", columns, True, cost=None)


def test_batches_of_a_table_are_one_load_of_their_lines() -> None:
    session = Session()
    columns = _columns(
        n=(pa.int32(), "int"),
        small=(pa.decimal128(9, 6), "decimal(9,6)"),
        fine=(pa.decimal128(9, 7), "decimal(9,7)"),
        text=(pa.string(), "varchar(9)"),
    )
    small, fine = Decimal("-0.000001"), Decimal("0.0000001")
    batches = [
        pa.record_batch(
            [[1, None], [small, None], [fine, None], ['a"b', None]],
            names=["n", "small", "fine", "text"],
        ),
        pa.record_batch(
            [[3], [Decimal(0)], [Decimal(0)], ["NULL"]], names=["n", "small", "fine", "text"]
        ),
    ]
    schema = pa.schema([(column.name, column.kind) for column in columns])
    table = pa.Table.from_batches([batch.cast(schema) for batch in batches])
    _sender(session, columns).load(table)
    assert session.loads == 1
    assert session.sent.decode().splitlines() == [
        '1,-0.000001,0.0000001,"a""b"',
        "NULL,NULL,NULL,NULL",
        '3,0.000000,0.0000000,"NULL"',
    ]


def test_a_refused_value_is_counted_from_the_first_batch_and_nothing_is_sent() -> None:
    session, columns = Session(), _columns(c=(pa.string(), "char(3)"))
    batches = [pa.record_batch([values], names=["c"]) for values in (["a", "b"], ["c", "d "])]
    with pytest.raises(BadValueError) as refused:
        _sender(session, columns).load(pa.Table.from_batches(batches))
    assert (refused.value.index, refused.value.value) == (3, "d ")
    assert session.loads == 0
