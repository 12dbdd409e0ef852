"""Tables that are changed between two statements of a read, at each place that there is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.short_statements import ShortStatements
from spark_channel.errors import SourceError

Act = Callable[[], object]


class ActingStatements(ShortStatements):
    """Statements before one of which something happens."""

    before: ClassVar[int]
    act: ClassVar[Act]
    sent: ClassVar[list[str]]

    def _take(self, sql: str, asked: int, begun: float) -> Any:
        if len(self.sent) == self.before:
            type(self).act()
        self.sent.append(sql)
        return super()._take(sql, asked, begun)


@contextmanager
def acting(before: int, act: Act) -> Iterator[list[str]]:
    """Call `act` before statement number `before` of the short statements in the block; the list has all of them."""
    sent: list[str] = []
    more = {"before": before, "act": staticmethod(act), "sent": sent}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "spark_channel.connectors.sql.read.reader.ShortStatements",
            type("Acting", (ActingStatements,), more),
        )
        yield sent


def limited(reader: SqlReader) -> SqlReader:
    """A reader whose statements have 10 rows."""
    reader.fetch_size = FetchSize(rows=10)
    return reader


def rows_read(reader: SqlReader, advice: int = 1) -> list[dict[str, Any]]:
    """All rows, in short statements. What is planned is planned before the first of them."""
    schema = reader.schema()
    splits = reader.split(advice)
    with reader.reading() as read:
        batches = [batch for split in splits for batch in read(split)]
    return list(pa.Table.from_batches(batches, schema).to_pylist())


def check_change(make: Callable[[], SqlReader], reset: Act, act: Act, says: str) -> None:
    """Before each statement of a read the table is changed: the read ends, and names the table and what changed."""
    for before in count():
        reset()
        with acting(before, act) as sent:
            try:
                found: object = rows_read(limited(make()))
            except SourceError as error:
                found = error
        if len(sent) <= before:
            assert before > 2, sent
            return
        assert "not the table any more" in str(found), f"changed before statement {before}"
        assert says in str(found)


def check_no_change(make: Callable[[], SqlReader], reset: Act, act: Act) -> None:
    """What changes no value of the table does not end its read, before whatever statement it is done."""
    reset()
    wanted = rows_read(limited(make()))
    for before in count():
        reset()
        with acting(before, act) as sent:
            assert rows_read(limited(make())) == wanted
        if len(sent) <= before:
            assert before > 2, sent
            return
