import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.datax import load_job, parse_parameters
from spark_channel.datax.json_text import parse_text
from spark_channel.datax.variables import expand_data
from spark_channel.errors import JobFileError, OptionError


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"job": }', "line 1, column 9"),
        ('{\n  "job": {\n    "setting" {}\n  }\n}', "line 3, column 15"),
        ('{\n  // a comment\n  /* and\n another */ "job": oops\n}', "line 4, column 20"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ('{"a": "b}', "line 1, column 7"),
        ("{", "line 1, column 2"),
        ("9" * 5000, "4300 digits"),
    ],
)
def test_broken_json_shows_its_line_and_column(text: str, place: str) -> None:
    with pytest.raises(
        JobFileError, match=f"shop.json: not JSON.*{place}|shop.json: not JSON at {place}"
    ):
        parse_text(text, {}, "shop.json")


def test_comments_and_last_commas_are_forgiven_and_strings_stay_whole() -> None:
    text = (
        '\ufeff{"url": "jdbc:x://h/a,}", // why\n "list": [1, 2, ], /* more */ "end": "/* no */", }'
    )
    assert parse_text(text, {}, "x") == {"url": "jdbc:x://h/a,}", "list": [1, 2], "end": "/* no */"}


def test_what_dataxs_parser_forgives_is_forgiven() -> None:
    text = r"""{'a': 'it\'s "x\\" // y', b: ["\x01", "\0", 1,, 2,,], /* ' */ "c": "tab	x
    y", // don't
    d_e: "\\x01", "k:": "a: b, }", "n": {"m":null,},}"""
    assert parse_text(text, {}, "x") == {
        "a": 'it\'s "x\\" // y',
        "b": ["\x01", "\0", 1, 2],
        "c": "tab\tx\n    y",
        "d_e": "\\x01",
        "k:": "a: b, }",
        "n": {"m": None},
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.booleans(),
)
def test_json_is_read_as_json(data: Any, ascii_only: bool) -> None:
    text = json.dumps(data, ensure_ascii=ascii_only).replace("$", "")
    assert parse_text(text, {}, "x") == json.loads(text)


def test_a_job_may_be_a_text_that_begins_with_a_byte_order_mark(make_job: Any) -> None:
    assert load_job("\ufeff" + json.dumps(make_job())).spec.reader.name


def test_variables_are_put_in_as_text() -> None:
    text = '{"channel": ${n}, "columns": [${cols}], "where": "day = \'${day}\' and x > $bizdate", "r": "^a$"}'
    values = {"n": "3", "cols": '"id", "name"', "day": "2024-01-31", "bizdate": "5"}
    assert parse_text(text, values, "x") == {
        "channel": 3,
        "columns": ["id", "name"],
        "where": "day = '2024-01-31' and x > 5",
        "r": "^a$",
    }


def test_a_variable_in_a_comment_need_not_be_set() -> None:
    assert parse_text('{"a": 1 /* ${old} */}', {}, "x") == {"a": 1}


def test_an_unset_variable_shows_its_place_and_what_to_give() -> None:
    with pytest.raises(JobFileError) as caught:
        parse_text('{\n "where": "d > ${day}", "x": "${hour} ${day}"\n}', {}, "shop.json")
    message = str(caught.value)
    assert message.startswith("shop.json: line 2, column 16: ${day}, ${hour} are not set; ")
    assert '-p "-Dday=..."' in message
    assert "${env:NAME}" in message


def test_an_unset_variable_in_data_shows_its_json_path(make_job: Any) -> None:
    with pytest.raises(JobFileError, match=r"^job\.setting\.speed\.channel: \$\{n\} is not set"):
        load_job(make_job(setting={"speed": {"channel": "${n}"}}))
    assert load_job(make_job(setting={"speed": {"channel": "${n}"}}), {"n": 4}).spec.channels == 4


def test_references_to_secrets_are_no_variables() -> None:
    data = {"a": ["${env:HOME}", "${file:/run/secret}", "$unset"]}
    assert expand_data(data, {}) == data


def test_parameters_of_the_command_line() -> None:
    assert parse_parameters("-Dday=2024-01-31 -Dwhere='a = 1 and b = 2' -Dempty= -Da.b=c=d") == {
        "day": "2024-01-31",
        "where": "a = 1 and b = 2",
        "empty": "",
        "a.b": "c=d",
    }
    assert parse_parameters("  ") == {}


@pytest.mark.parametrize(
    "text", ["day=1", "-Dday", "-D=1", "-D1x=2", "-Dday='open", "-Da=1 secret"]
)
def test_what_is_no_parameter_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="-Dname=value"):
        parse_parameters(text)
