"""A transfer into and out of a lakehouse table by the engine of this machine: no Spark, and no JVM."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.transfers.dispatch import carry_out
from tests.behaviour.exactly_once.targets import LAKES, Target, open_target
from tests.connectors.files.helpers import read

_ROWS = 1000


@pytest.fixture(params=LAKES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(False)
        yield target


def test_a_transfer_in_and_out(target: Target, tmp_path: Path) -> None:
    options = {name: value for name, value in target.options.items() if name != "writer"}
    table = Endpoint(target.options["writer"], options)
    once = {"txnAppId": "nightly", "txnVersion": "1"}
    source = Endpoint("generator", {"rows": str(_ROWS)})
    with LocalEngine() as engine:
        for _ in range(2):  # the scheduler runs it again
            carry_out(
                engine, TransferSpec(source, Endpoint(table.name, {**options, **once}), channels=2)
            )
            assert len(target.seen()) == target.seen().total() == _ROWS
        out = Endpoint("parquet", {"path": str(tmp_path / "out")})
        report = carry_out(engine, TransferSpec(table, out, channels=2))
    assert report.rows == _ROWS
    assert read("parquet", tmp_path / "out").num_rows == _ROWS
    assert target.staged() == []
