"""The last jobs of programs that have ended, for the page: a bounded list beside the adverts of services."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_channel.clock import utc_now
from spark_channel.errors import ServiceUnavailableError
from spark_channel.plain_text import log_of
from spark_channel.service.discovery import LARGEST_FILE, ServiceDirectory

__all__ = ["KEPT_SECONDS", "MOST_KEPT", "ended_jobs", "keep_ended"]

_log = log_of(__name__)

KEPT_SECONDS = 900
MOST_KEPT = 40
_FILE = "ended-jobs"


def keep_ended(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Keep jobs as the page shows them. The end of a program never fails because of it."""
    if not jobs:
        return
    now = utc_now().timestamp()

    def with_these(before: object) -> object:
        return _last([*_recent(before, now), *([now, record] for record in jobs)])

    try:
        ServiceDirectory().change(_FILE, with_these)
    except (OSError, ServiceUnavailableError) as error:
        _log.debug("the page will not show the jobs that have ended: %s", error)


def _last(records: Sequence[Any]) -> list[Any]:
    """The newest of them, as many as a file can hold that is read whole."""
    room, fitting = LARGEST_FILE, list[Any]()
    for record in reversed(records[-MOST_KEPT:]):
        room -= len(json.dumps(record)) + len(", ")
        if room < 0:
            break
        fitting.append(record)
    return fitting[::-1]


def ended_jobs(directory: ServiceDirectory) -> list[dict[str, Any]]:
    """The jobs that `keep_ended` was given in the last 15 minutes."""
    try:
        records = directory.plain(_FILE)
    except OSError:  # it went, as with the user's last login
        return []
    return [record for _, record in _recent(records, utc_now().timestamp())]


def _recent(records: object, now: float) -> list[Any]:
    if not isinstance(records, list):
        return []
    return [record for record in records if now - KEPT_SECONDS <= record[0] <= now]
