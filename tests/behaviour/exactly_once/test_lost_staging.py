"""Rows that were staged and are gone: a publish finds that out before it runs or changes anything."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.connectors.sql import SqlWriter
from spark_channel.errors import CommitError, TargetError
from tests.behaviour.exactly_once.targets import KINDS, Target, open_target

ROWS = pa.record_batch({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(True)
        yield target


def test_a_script_that_may_commit_does_not_run_before_the_staged_rows_are_counted(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def note(_database: Any, _session: Any, _texts: Any, option: str, **_: Any) -> None:
        ran.append(option)

    monkeypatch.setattr("spark_channel.connectors.sql.write.job.run_script", note)
    writer: Any = target.writer()
    assert isinstance(writer, SqlWriter)
    plan: Any = writer.prepare(WriteContext("job", commit="job"), ROWS.schema)
    task = writer.open(plan, 0, 1)
    task.write(ROWS)
    receipt = task.close()
    database = writer.database
    with database.connect(TargetError, "look", patient=False) as session:
        names = database.staging_names(session, plan.place, plan.stage)
        assert names
        database.drop_staging(session, plan.place, names)
    with pytest.raises(CommitError):
        writer.commit(plan, [receipt])
    assert ran == []
    writer.abort(plan, None)
    assert target.seen() == Counter()
