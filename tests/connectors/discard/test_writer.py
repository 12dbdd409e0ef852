"""Discard takes everything, counts it, and keeps nothing."""

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.discard.writer import DiscardWriter
from spark_channel.errors import TargetError
from spark_channel.testing import writer_conformance

pytestmark = pytest.mark.real_server("this process", "discard")


def test_it_keeps_the_contract() -> None:
    writer_conformance(lambda: load_writer({"writer": "discard"})[0], read_back=None, ledger=False)


def test_it_counts() -> None:
    writer, warnings = load_writer({"url": "discard:"})
    assert isinstance(writer, DiscardWriter)
    assert warnings == []
    batch = pa.record_batch({"nested": [[1, 2], None], "x": [1.0, float("nan")]})
    plan = writer.prepare(WriteContext(job="j", commit="task"), batch.schema)
    attempt = writer.open(plan, 4, 9)
    attempt.write(batch)
    attempt.write(batch)
    receipt = attempt.close()
    assert (plan.commit, receipt.task, receipt.attempt, receipt.rows, receipt.nbytes) == (
        "task",
        4,
        9,
        4,
        2 * batch.nbytes,
    )
    with pytest.raises(TargetError, match="has ended"):
        attempt.write(batch)
