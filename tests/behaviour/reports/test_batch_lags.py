"""The lag of a micro-batch in the report of its write."""

from spark_channel.progress import JobProgress, JobSpec, TransferReport
from spark_channel.spark.session import BatchLags


def read(query: str, batch: int, rows: int) -> JobSpec:
    return JobSpec(
        "read", query=query, batch=batch, behind=f"behind {rows} rows", lag={"rows": rows}
    )


def lag_of(lags: BatchLags, spec: JobSpec) -> tuple[str, dict[str, int | float]]:
    found: TransferReport = lags.with_lag(spec, JobProgress("write", spec).report())
    return found.behind, dict(found.lag)


def test_the_write_of_a_batch_has_the_lag_of_its_read() -> None:
    lags = BatchLags()
    lags.opened("r1", read("orders", 1, 10))
    lags.opened("r2", read("orders", 2, 20))
    lags.opened("r3", read("items", 2, 30))
    assert lag_of(lags, JobSpec("write", query="orders", batch=2)) == (
        "behind 20 rows",
        {"rows": 20},
    )
    assert lag_of(lags, JobSpec("write", query="orders", batch=3)) == ("", {})
    assert lag_of(lags, JobSpec("write")) == ("", {}), "of no stream"


def test_a_query_of_several_sources_has_no_lag_of_one_of_them() -> None:
    lags = BatchLags()
    lags.opened("r1", read("orders", 1, 10))
    lags.opened("r1", read("orders", 1, 10))  # it was closed too early, and went on
    assert lag_of(lags, JobSpec("write", query="orders", batch=1))[0] == "behind 10 rows"
    lags.opened("r2", read("orders", 1, 20))
    assert lag_of(lags, JobSpec("write", query="orders", batch=1)) == ("", {})


def test_it_forgets_old_batches() -> None:
    lags = BatchLags()
    for batch in range(200):
        lags.opened(f"r{batch}", read("orders", batch, batch))
    assert lag_of(lags, JobSpec("write", query="orders", batch=0)) == ("", {})
    assert lag_of(lags, JobSpec("write", query="orders", batch=199)) == (
        "behind 199 rows",
        {"rows": 199},
    )
