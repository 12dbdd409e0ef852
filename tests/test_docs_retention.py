"""How long records and staging are kept, and where the service listens: the docs and the code agree."""

import inspect
import re
from pathlib import Path

from spark_channel.cli.limits import serve
from spark_channel.connectors.base.claims import BEAT_SECONDS, ORPHAN_SECONDS
from spark_channel.connectors.files import log
from spark_channel.connectors.sql import claim_tables, claims
from spark_channel.service import ServiceServer, http_server

DOCS = Path(__file__).resolve().parents[1] / "docs"


def said(page: str, pattern: str) -> list[int]:
    """The numbers that a page gives where `pattern` has its groups; line breaks do not count."""
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    match = re.search(pattern, text)
    assert match, f"{page} does not say {pattern!r}"
    return [int(number.replace(" ", "")) for number in match.groups()]


def test_claims_and_plans_are_kept_for_as_many_days() -> None:
    days = claims._DAYS
    assert days == claim_tables._DAYS
    assert said("operations.md", r"a later job, (\d+) days after they were published") == [days]
    assert said("operations.md", r"the publish; a later transfer, after (\d+) days") == [days]
    assert said("operations.md", r"a directory keeps the last ([\d ]+)\)") == [log._JOBS_KEPT]
    assert said("commits.md", r"Plans of transfers are kept for at least (\d+) days") == [days]
    assert said("guarantees.md", r"is dropped after (\d+) days") == [days]


def test_staging_of_a_run_elsewhere_is_kept_for_two_days_without_a_heartbeat() -> None:
    """A day raises a doubt, and the doubt grows a day old."""
    assert (BEAT_SECONDS, ORPHAN_SECONDS) == (3_600, 86_400)
    assert said("commits.md", r"heartbeat once an hour, also while a limit is paused") == []
    assert (
        said(
            "commits.md",
            r"had no heartbeat for a day\. .* a second day without a heartbeat removes",
        )
        == []
    )
    assert said("commits.md", r"kept for two days without a heartbeat") == []
    assert said("operations.md", r"had no heartbeat for two days") == []


def test_the_service_listens_where_the_docs_say() -> None:
    loopback = "127.0.0.1"
    assert inspect.signature(serve).parameters["host"].default == loopback
    assert inspect.signature(ServiceServer).parameters["host"].default == loopback
    assert f"| `--host` | `{loopback}` |" in (DOCS / "limits.md").read_text(encoding="utf-8")
    assert f"| `SPARK_CHANNEL_HOST` | `{loopback}` for a `local` master" in (
        DOCS / "deploy.md"
    ).read_text("utf-8")


def test_the_bounds_of_the_service_are_those_of_the_code() -> None:
    strangers, with_tls = http_server._MOST_STRANGERS, http_server._MOST_WITH_TLS
    assert said("hardening.md", r"connections without a token \| (\d+), .*? With TLS (\d+),") == [
        strangers,
        with_tls,
    ]
    assert said("hardening.md", r"connections with a token \| ([\d ]+) \|") == [
        http_server._MOST_CONNECTIONS
    ]
    assert said("hardening.md", r"can keep (\d+) connections \(with TLS (\d+)\) busy") == [
        strangers,
        with_tls,
    ]
