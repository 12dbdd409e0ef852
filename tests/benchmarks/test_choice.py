"""Which benchmarks `make bench` runs."""

import pytest

from tests.benchmarks.__main__ import chosen


def test_a_benchmark_that_downloads_a_peer_runs_only_when_it_is_named() -> None:
    assert "bench_peers" not in chosen([])
    assert {"bench_channel", "bench_limits"} <= set(chosen([]))
    assert chosen(["peers", "bench_channel"]) == ["bench_peers", "bench_channel"]
    with pytest.raises(SystemExit, match="no benchmark bench_nosuch; there are bench_base"):
        chosen(["nosuch"])
