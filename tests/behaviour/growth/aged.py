"""Targets after half a million jobs: what the product keeps of them, in the form in which it writes it.

One real job makes the target, then its records are multiplied: half a million versions of one transaction id, and the
jobs without one that each target keeps.
"""

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from spark_channel.connectors import load_writer
from spark_channel.connectors.base.claims import Claim, Identity
from spark_channel.connectors.delta.claims import PER_ACTION, bits_app_id
from spark_channel.connectors.redis import staging as redis_staging
from spark_channel.connectors.sql import SqlWriter
from spark_channel.connectors.sql.write.claim_tables import CLAIMS, COLUMNS
from spark_channel.connectors.sql.write.claim_upkeep import PER_ROW, with_versions
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.database import placed
from spark_channel.connectors.sql.write.in_session import claims_at, in_transaction
from spark_channel.errors import TargetError

__all__ = ["JOBS", "VERSIONS", "age_delta", "age_folder", "age_redis", "age_sql"]

VERSIONS = 500_000
JOBS = 43_200
"""One a minute for the 30 days that databases and Redis keep them."""
NAME = "nightly"
_ROWS = 400
"""Rows of one INSERT."""
_LINKS = 30_000
"""Names of one file: some file systems allow 65 000."""
_AT = "2026-01-01T00:00:00+00:00"


def age_sql(options: dict[str, Any]) -> None:
    """The table of claims of a database, which a job has made."""
    writer = load_writer(options)[0]
    assert isinstance(writer, SqlWriter)

    def work(session: Any) -> None:
        place = placed(writer.database, session)
        claims: Claims = claims_at(writer.database, session, place)
        target = place.claimed
        for number in range(VERSIONS // PER_ROW):
            bits = Claim(Identity(target, "versions", NAME, number), "", 0, "published")
            versions = range(number * PER_ROW, (number + 1) * PER_ROW)
            claims._write(with_versions(bits, versions, _AT), None)
        table = writer.database.claim_dialect(session, place).table(CLAIMS)
        for _ in range(JOBS // _ROWS):
            rows = ", ".join(_job_row(target) for _ in range(_ROWS))
            session.execute(f"INSERT INTO {table} ({COLUMNS}) VALUES {rows}")

    def in_one(session: Any) -> None:
        with in_transaction(writer.database, session):
            work(session)

    writer.run(TargetError, "age", in_one)


def _job_row(target: str) -> str:
    """As `Claims` writes a published job, whose 30 days are not over."""
    identity = Identity(target, "job", f"job-{uuid.uuid4().hex}")
    return (
        f"('{identity.key}', '{target}', 'job', '{identity.name}', NULL, '{identity.name}', 1, 'published', NULL, "
        "'2099-01-01T00:00:00+00:00', 1, 8, '', '', '', NULL)"
    )


def age_redis(options: dict[str, Any], client: Any) -> None:
    staging = redis_staging.Staging(load_writer(options)[0].options)  # type: ignore[arg-type] # of Redis
    client.flushall()
    for number in range(0, VERSIONS, 20_000):
        place = redis_staging._bit_of(Identity(staging.target, "txn", NAME, number))
        assert place is not None
        client.set(place[0], b"\xff" * 2_500)
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(JOBS):
            identity = Identity(staging.target, "job", f"job-{uuid.uuid4().hex}")
            claim = Claim(identity, identity.name, 1, "published", published_at=_AT)
            pipeline.set(
                redis_staging._claim_key(identity), redis_staging._text(claim), ex=2_592_000
            )
        pipeline.execute()


def age_folder(folder: Path, count: int) -> None:
    """A folder after `count` appends of one file, of which a job has made the first, under half a million versions."""
    entry = max((folder / "_spark_channel").glob("*.json"))
    log = json.loads(entry.read_text())
    known = log["state"]["files"][0]
    source = folder / known["path"]
    for number in range(count - 1):
        path = f"part-00000-{uuid.uuid4().hex[:12]}-e1-0-{uuid.uuid4().hex[:8]}-000.snappy.parquet"
        if number % _LINKS == _LINKS - 1:
            source = Path(shutil.copy(source, folder / path))
        else:
            os.link(source, folder / path)
        log["state"]["files"].append({**known, "path": path})
    log["state"]["versions"] = {NAME: {"ranges": [[0, VERSIONS - 1]], "at": {"499999": _AT}}}
    entry.write_text(json.dumps(log))


def age_delta(path: Path, target: str) -> None:
    """The log of a table: bits of versions, and slots of jobs, in a checkpoint."""
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    full = (1 << PER_ACTION) - 1
    bits = [
        Transaction(bits_app_id(Identity(target, "txn", NAME, number)), full, 0)
        for number in range(0, VERSIONS, PER_ACTION)
    ]
    slots = [
        Transaction(f"spark-channel/{uuid.uuid4().hex * 2}/slot", 1 << 32, 0) for _ in range(128)
    ]
    table = DeltaTable(str(path))
    empty = pa.table({"id": pa.array([], pa.int64())})
    write_deltalake(
        table,
        empty,
        mode="append",
        commit_properties=CommitProperties(app_transactions=bits + slots),
    )
    DeltaTable(str(path)).create_checkpoint()
