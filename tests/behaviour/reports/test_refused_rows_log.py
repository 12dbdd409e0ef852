"""What a log says of refused rows."""

import logging

import pytest

from spark_channel.connectors.base.contract import DirtyRow
from spark_channel.pipeline.dirty import tell_refused


def test_the_first_ten_are_told_with_row_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rows = (DirtyRow(f'{{"id": {number}}}', f"reason {number}") for number in range(20))
    tell_refused("j", rows, 25, "", {"too long": 15, "no key": 8})
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == 'job j: refused row {"id": 0}: reason 0'
    assert messages[9] == 'job j: refused row {"id": 9}: reason 9'
    (last,) = messages[10:]
    assert last == (
        "job j: 25 rows were refused, of which 10 are shown above; option dirtyRowsPath (--dirty-rows-path) "
        "keeps them: too long (15 rows); no key (8 rows); other reasons (2 rows)"
    )


def test_few_of_them_are_all_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    tell_refused("j", [DirtyRow("{}", "no")], 1, "/kept")
    assert [record.getMessage() for record in caplog.records] == [
        "job j: refused row {}: no",
        "job j: 1 rows were refused; they are in /kept",
    ]
    caplog.clear()
    tell_refused("j", [], 0, "")
    assert caplog.records == []
