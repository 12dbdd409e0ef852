"""Objects of a job file: their paths in errors, keys without effect, and secrets that stay hidden."""

from typing import ClassVar

import pytest

from spark_channel.datax.sections import (
    JobSection,
    ineffective_keys,
    json_path,
    parse_section,
    refusal,
    refuse_twice,
)
from spark_channel.datax.value_types import Positive
from spark_channel.errors import JobFileError


class Inner(JobSection):
    size: Positive = 1


class Outer(JobSection):
    ignored: ClassVar[dict[str, str]] = {"old": "it has no meaning here"}
    refused: ClassVar[dict[str, str]] = {"never": "its meaning cannot be kept"}

    inner: Inner = Inner()
    list_of: tuple[Inner, ...] = ()


def test_a_path_is_written_as_people_write_it() -> None:
    assert json_path(("job", "content", 0, "reader")) == "job.content[0].reader"


def test_every_fault_is_named_by_its_path() -> None:
    with pytest.raises(JobFileError, match=r"^job\.inner\.size got 0") as refused:
        parse_section(Outer, {"inner": {"size": 0}, "listOf": [{"size": "x"}]}, "job")
    assert [text.split(" got")[0] for text in refused.value.others] == ["job.listOf[0].size"]


def test_null_is_as_if_the_key_were_not_there() -> None:
    assert parse_section(Outer, {"inner": None}, "job").inner.size == 1


def test_keys_without_effect_are_listed_with_their_reasons() -> None:
    section = parse_section(Outer, {"old": 1, "iner": 2, "listOf": [{"x": 1}]}, "job")
    assert list(ineffective_keys(section, "job")) == [
        "job.old (it has no meaning here)",
        "job.iner (unknown; did you mean 'inner'?)",
        "job.listOf[0].x (unknown)",
    ]


@pytest.mark.parametrize(
    ("key", "words"), [("never", "its meaning cannot be kept"), ("*password", "encrypted by DataX")]
)
def test_keys_whose_meaning_cannot_be_kept_are_refused(key: str, words: str) -> None:
    section = parse_section(Outer, {key: "x"}, "job")
    with pytest.raises(JobFileError, match=words):
        list(ineffective_keys(section, "job"))


def test_an_error_shows_no_secret() -> None:
    assert "s3cret" not in str(refusal("job.password", "s3cret", "a text"))
    assert "s3cret" not in str(refusal("job.url", {"password": "s3cret"}, "a text"))


def test_a_name_twice_is_refused_with_both_places() -> None:
    with pytest.raises(JobFileError, match=r"'a' twice, at \[0\] and \[2\]"):
        refuse_twice("job.column", ["a", "b", "a"])
