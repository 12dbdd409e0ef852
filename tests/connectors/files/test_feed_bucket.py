"""Files that arrive in a bucket, read as they arrive."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.tunnel import Delivery, Tunnel
from tests.servers.bucket import Bucket, bucket

START = datetime(2026, 1, 1, tzinfo=UTC)
NO_LIMIT = FeedLimit()


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "tester"),
        ("AWS_SECRET_ACCESS_KEY", "any"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    with bucket() as made:
        yield made


def arrive(arrivals: Bucket, name: str, rows: list[int], *, minute: int = 0) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), sink)
    arrivals.put(f"in/{name}", sink.getvalue().to_pybytes(), START + timedelta(minutes=minute))


def test_a_bucket_is_shared_out_and_each_file_that_arrives_comes_once(
    arrivals: Bucket, tmp_path: Path
) -> None:
    for number in range(5):
        arrive(arrivals, f"2026/{number}.parquet", [10 * number, 10 * number + 1], minute=number)
    arrive(arrivals, "_hidden.parquet", [99])
    options = {
        "reader": "parquet",
        "path": arrivals.uri("in"),
        "tunnelChannels": "2",
        "heartbeatInterval": "5",
    }
    tunnel = Tunnel("in", options, store=str(tmp_path / "tunnels.db"))
    tunnel.create(channels=2)
    found: Counter[int] = Counter()

    def process(delivery: Delivery) -> None:
        found.update(n for batch in delivery.batches for n in batch.column("n").to_pylist())

    tunnel.consume(process, threads=1, drained=True)
    expected = [10 * number + k for number in range(5) for k in range(2)]
    assert found == Counter(expected)
    arrive(arrivals, "2026/late.parquet", [7], minute=2)
    arrive(arrivals, "2027/new.parquet", [8, 9], minute=90)
    tunnel.consume(process, threads=1, drained=True)
    assert found == Counter([*expected, 7, 8, 9])
    assert any(
        asked.startswith("LIST in") and not asked.endswith("''") for asked in arrivals.asked
    ), "pages"


def test_a_range_of_a_bucket_names_the_same_files_for_ever(arrivals: Bucket) -> None:
    arrive(arrivals, "a.parquet", [1], minute=1)
    reader, _ = load_reader({"reader": "parquet", "path": arrivals.uri("in")})
    feed = reader.feed(FeedOptions())
    (start,) = feed.earliest()
    end = feed.latest(start, NO_LIMIT)
    arrive(arrivals, "b.parquet", [2], minute=2)

    def rows(after: object, upto: object) -> list[int]:
        splits = feed.changes(after, upto)  # type: ignore[arg-type] # neither is None
        return [
            n
            for split in splits
            for batch in feed.read(split)
            for n in batch.column("n").to_pylist()
        ]

    assert rows(start, end) == [1]
    assert rows(end, feed.latest(end, NO_LIMIT)) == [2]
