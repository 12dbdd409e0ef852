"""Options of an end that are for the whole job, beside the job's own settings."""

from typing import Any

import pytest

from spark_channel.datax.end_settings import dirty_limit, with_end
from spark_channel.datax.plugin_context import ParsedPlugin
from spark_channel.errors import JobFileError
from spark_channel.planning import Endpoint

PATH = "job.content[0].writer.parameter"


def plugin(**settings: Any) -> ParsedPlugin:
    return ParsedPlugin(Endpoint("sqlite", {}), **settings)


def test_an_end_sets_what_the_job_leaves_open() -> None:
    settings = {"channels": None, "channels_per_task": 1}
    of_job = {"channels": 4, "channels_per_task": 2}
    assert with_end(settings, plugin(of_job=of_job), PATH) == of_job


def test_an_end_that_contradicts_the_job_is_refused_by_its_path() -> None:
    with pytest.raises(JobFileError, match=r"parameter\.rowsPerSecond got 5; it takes 7"):
        with_end({"rows_per_second": 7}, plugin(of_job={"rows_per_second": 5}), PATH)


def test_a_target_that_leaves_no_row_out_ends_the_job_with_the_first_and_says_so() -> None:
    warnings: list[str] = []
    ends = [(PATH, plugin(no_dirty_rows="it writes one file"))]
    assert dirty_limit({"max_dirty_rows": None}, ends, warnings) == {"max_dirty_rows": 0}
    assert warnings == [f"{PATH}: one row that is refused ends the job, and nothing is written"]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (plugin(no_dirty_rows="it writes one file"), "sqlite cannot leave rows out"),
        (plugin(own_dirty_limit=True), "one limit of refused rows"),
    ],
)
def test_a_limit_of_the_job_that_a_target_cannot_hold_is_refused(
    end: ParsedPlugin, words: str
) -> None:
    with pytest.raises(JobFileError, match=words):
        dirty_limit({"max_dirty_rows": 3}, [(PATH, end)], [])
