"""Samples of a database's health on their way to the service: bounded and checked, and they never fail a job."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.errors import ServiceDeniedError
from spark_channel.limits import HealthSample, StatusRequest
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ServiceAddress, ServiceControl, ServiceServer
from spark_channel.service.connection import Connection
from spark_channel.service.limits import limit_scope
from spark_channel.service.protocol import (
    RequestError,
    decode,
    encode,
    sample_from_json,
    sample_to_json,
)
from tests.service.fuzz import mutated, odd

NAMES = st.text(st.characters(categories=["Ll", "Nd"]), min_size=1, max_size=20)
NUMBERS = st.floats(0, 1e18)
SAMPLES = st.builds(
    HealthSample,
    st.dictionaries(NAMES, st.tuples(NUMBERS, NUMBERS), max_size=10),
    st.dictionaries(NAMES, st.lists(NUMBERS, max_size=20).map(tuple), max_size=5),
    st.lists(NAMES, max_size=5).map(tuple),
    st.text(max_size=300),
)


@given(sample=SAMPLES)
def test_a_sample_arrives_as_it_was_and_its_error_in_one_short_line(sample: HealthSample) -> None:
    found = sample_from_json(decode(encode(sample_to_json(sample))))
    assert (found.values, found.delays, found.missing) == (
        sample.values,
        sample.delays,
        sample.missing,
    )
    assert found.error.isprintable()
    assert len(found.error) == min(200, len(sample.error))


def test_whatever_comes_is_a_sample_or_refused() -> None:
    random_ = random.Random(7)
    body = sample_to_json(
        HealthSample({"lag": (1.0, 2.0)}, {"wakeup": (0.1, 0.2)}, ("x (needs y)",), "gone")
    )
    for number in range(3_000):
        data = json.dumps(body).encode()
        try:
            sample_from_json({**body, **decode((odd if number % 2 else mutated)(random_, data))})
        except RequestError:
            pass


def test_the_service_takes_samples_of_its_own_jobs_only() -> None:
    well, sample = (
        sample_to_json(HealthSample({"replication_lag": (seconds, 1.0)})) for seconds in (0.0, 5.0)
    )
    with ServiceServer() as server:
        job = server.jobs.open(JobSpec("read", rows_per_second=1_000, protect=True))
        plain = server.jobs.open(JobSpec("read", rows_per_second=1_000))
        connection = Connection(server.address)
        try:
            for each in (job, plain, "no such job"):
                assert connection.call("health", {"job": each, "side": "source", **well}) == {}
                assert connection.call("health", {"job": each, "side": "source", **sample}) == {}
            with pytest.raises(ServiceDeniedError, match="side"):
                connection.call("health", {"job": job, "side": "middle", **sample})
            with pytest.raises(ServiceDeniedError, match="values"):
                connection.call("health", {"job": job, "side": "source"})
        finally:
            connection.close()
        server.tokens.add(limit_scope("orders"), "a-token-that-spends")
        other = Connection(
            ServiceAddress(server.address.host, server.address.port, "a-token-that-spends")
        )
        try:
            with pytest.raises(ServiceDeniedError):
                other.call("health", {"job": job, "side": "source", **sample})
        finally:
            other.close()
        status = server.limits.handle(StatusRequest(f"job:{job}"))
        assert getattr(status, "effective_rows_per_second", 1_000) <= 500
        status = server.limits.handle(StatusRequest(f"job:{plain}"))
        assert getattr(status, "effective_rows_per_second", None) == 1_000
        server.jobs.enter(job, Phase.DONE)
        server.limits.observe(job, "source", HealthSample())  # it has ended meanwhile


def test_other_jobs_of_a_run_pause_while_one_builds_an_index() -> None:
    """Only those of the same run, and only with `protect`; they go on when it is built, or its job ends."""

    def speed(job: str) -> float | None:
        status = server.limits.handle(StatusRequest(f"job:{job}"))
        return getattr(status, "effective_rows_per_second", None)

    def opened(part_of: str, *, protect: bool = True) -> str:
        spec = JobSpec("transfer", rows_per_second=100, protect=protect, part_of=part_of)
        return server.jobs.open(spec)

    paused = pytest.approx(0, abs=0.001)
    with ServiceServer() as server, ServiceControl(server.address) as control:
        builder, beside = opened("replicate 1"), opened("replicate 1")
        plain, elsewhere = opened("replicate 1", protect=False), opened("replicate 2")
        control.enter(builder, Phase.PUBLISHING, building="builds index by_v over 60 000 rows")
        later = opened("replicate 1")
        speeds = [speed(job) for job in (builder, beside, later, plain, elsewhere)]
        assert speeds == [100, paused, paused, 100, 100]
        assert "paused: builds index by_v" in control.status(beside)[0]["line"]
        assert "builds index by_v over 60 000 rows" in control.status(builder)[0]["line"]
        control.enter(builder, Phase.PUBLISHING)
        assert [speed(job) for job in (beside, later)] == [100, 100]
        assert "builds" not in control.status(builder)[0]["line"]
        control.enter(builder, Phase.PUBLISHING, building="builds index by_w")
        assert speed(beside) == paused
        control.enter(builder, Phase.FAILED)
        assert [speed(job) for job in (beside, later)] == [100, 100]
