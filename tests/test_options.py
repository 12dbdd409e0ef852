"""Options: amounts, names, secrets, contradictions, and the one voice of their errors."""

# ruff: noqa: E501 - a case is one line of its table

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

import spark_channel.options
from spark_channel.errors import OptionError
from spark_channel.option_types import protection_aims
from spark_channel.options import (
    ColumnList,
    CommonOptions,
    Options,
    ReadOptions,
    Secret,
    WriteOptions,
    parse_amount,
)
from spark_channel.tunnel.options import STREAM_OPTIONS, TunnelOptions


class Sample(ReadOptions):
    aliases: ClassVar[Mapping[str, str]] = {**ReadOptions.aliases, "tableName": "dbtable"}
    ignored: ClassVar[Mapping[str, str]] = {"driver": "no JDBC driver takes part"}
    refused: ClassVar[Mapping[str, str]] = {"pushDownLimit": "write the limit into the query"}

    dbtable: str | None = None
    password: Secret | None = None
    ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5
    header: bool = False
    needed: str = "there"


class Needy(Options):
    url: str
    token: Secret


def parse(**options: Any) -> Sample:
    return Sample.parse(options)[0]


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1),
        ("50000", 50_000),
        ("50k", 50_000),
        ("50K", 50_000),
        ("1.5M", 1_500_000),
        ("2g", 2 * 10**9),
        ("1_000", 1000),
        ("  7  ", 7),
        ("0.001k", 1),
        ("1000000000000000000", 10**18),
        (5, 5),
        (5.0, 5),
        ("3t", 3 * 10**12),
    ],
)
def test_amounts_of_rows(text: object, amount: int) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1),
        ("64MB", 64_000_000),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("2k", 2000),
        ("10B", 10),
        ("1KB", 1000),
        ("1TiB", 1 << 40),
        ("67108864", 67_108_864),
    ],
)
def test_amounts_of_bytes(text: str, amount: int) -> None:
    assert parse_amount(text, bytes_=True) == amount


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "",
        " ",
        "abc",
        "1e3",
        "1.5",
        "1,000",
        "k",
        "5x",
        "1.2.3k",
        "0.0001k",
        "9223372036854775808",
        "9223372036854775807k",
        True,
        None,
        "\u0665",
        "+5",
        "5 5",
        "0x10",
        "nan",
        "inf",
    ],
)
def test_what_is_no_amount(text: object) -> None:
    for bytes_ in (False, True):
        with pytest.raises(ValueError, match=" of 1 "):
            parse_amount(text, bytes_=bytes_)


@pytest.mark.parametrize("text", ["5MB", "5KiB", "5b", "5ki"])
def test_a_size_is_no_number_of_rows(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is a size"):
        parse_amount(text)


@given(st.integers(1, 10**18))
def test_any_whole_number_is_itself(number: int) -> None:
    assert parse_amount(str(number)) == parse_amount(number, bytes_=True) == number


@pytest.mark.parametrize("name", ["rowsPerSecond", "rowspersecond", "ROWSPERSECOND"])
@pytest.mark.parametrize("bad", ["0", "-1", "abc", ""])
def test_a_bad_speed_is_told_with_what_it_takes(name: str, bad: str) -> None:
    with pytest.raises(OptionError) as caught:
        Sample.parse({name: bad}, connector="csv")
    assert str(caught.value) == (
        f"option 'rowsPerSecond' got {bad!r}; it takes a whole number of 1 or more, such as 50000 or 50k (connector 'csv')"
    )
    assert (caught.value.option, caught.value.got) == ("rowsPerSecond", bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": "x"}, "'channels' got 'x'; it takes a whole number"),
        ({"channels": "2.5"}, "'channels' got '2.5'; it takes a whole number"),
        ({"channels": "0"}, "'channels' got '0'; it takes a number of 1 or more"),
        ({"channels": "100001"}, "'channels' got '100001'; it takes a number of 100000 or less"),
        ({"ratio": "0"}, "'ratio' got '0'; it takes a number above 0"),
        ({"ratio": "1"}, "'ratio' got '1'; it takes a number below 1"),
        ({"ratio": "half"}, "'ratio' got 'half'; it takes a number"),
        ({"header": "maybe"}, "'header' got 'maybe'; it takes true or false"),
        ({"bytesPerSecond": "0"}, "'bytesPerSecond' got '0'; it takes a size of 1 byte or more"),
        ({"columns": "a,,b"}, "'columns' got 'a,,b'; it takes column names"),
        ({"jobId": "a/b"}, "'jobId' got 'a/b'; it takes 1 to 64 letters"),
    ],
)
def test_bad_values(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(**options)


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes", True])
def test_booleans_as_spark_sends_them(text: object) -> None:
    assert parse(header=text).header is True


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rowPerSecond", "rowsPerSecond"),
        ("rows_per_second", "rowsPerSecond"),
        ("channel", "channels"),
        ("numpartition", "numPartitions"),
        ("colums", "columns"),
        ("tablename2", "tableName"),
        ("headers", "header"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(
        OptionError, match=f"unknown option '{typed}' of connector 'csv'; did you mean '{meant}'?"
    ) as caught:
        Sample.parse({typed: "1"}, connector="csv")
    assert caught.value.takes == meant


def test_an_option_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(
        OptionError, match=r"unknown option 'zzzz'; known: .*rowsPerSecond.*dbtable"
    ):
        parse(zzzz="1")


def test_ignored_options_are_warned_of_and_refused_ones_are_not_taken() -> None:
    assert Sample.parse({"DRIVER": "x.y.Z"})[1] == [
        "option 'DRIVER' is ignored: no JDBC driver takes part"
    ]
    with pytest.raises(
        OptionError, match="option 'pushDownLimit' is not supported: write the limit into the query"
    ):
        parse(pushdownlimit="true")


def test_aliases_mean_their_option() -> None:
    assert parse(numpartitions="3").channels == 3
    assert parse(TABLENAME="t").dbtable == "t"
    assert parse(numPartitions="3", channels="3").channels == 3
    with pytest.raises(
        OptionError, match="options 'numPartitions' and 'channels' mean the same and differ"
    ):
        parse(numPartitions="3", channels="4")
    with pytest.raises(OptionError, match=r"'Path1' and 'path1'|mean the same and differ"):
        Sample.parse({"DbTable": "a", "dbtable": "b"})


def test_none_is_absent() -> None:
    assert parse(dbtable=None, needed=None, nosuch=None).needed == "there"


def test_a_missing_option_is_named() -> None:
    with pytest.raises(OptionError, match="option 'url' is missing") as caught:
        Needy.parse({"token": "x"})
    assert caught.value.option == "url"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ("a",)),
        (" a , b ", ("a", "b")),
        ("my col,b", ("my col", "b")),
        ('"a,b", c', ("a,b", "c")),
        ('"say ""hi"""', ('say "hi"',)),
        ("`a,``b`,c", ("a,`b", "c")),
        ('["a", "b,c", "d\\"e"]', ("a", "b,c", 'd"e')),
        (["x", "y"], ("x", "y")),
        ("naïve,列", ("naïve", "列")),
        ("a.b,c-d,e/f", ("a.b", "c-d", "e/f")),
    ],
)
def test_column_lists(text: object, names: tuple[str, ...]) -> None:
    assert parse(columns=text).columns == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "a,",
        ",a",
        "a,,b",
        '"a',
        'a"b',
        '"a"b',
        "[1]",
        "[",
        "[]",
        '{"a": 1}x,',
        '"",b',
        "a,b,a",
    ],
)
def test_what_is_no_column_list(text: str) -> None:
    with pytest.raises(OptionError, match="'columns'"):
        parse(columns=text)


SECRET = "hunter2-äö"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(SECRET + "\r\n", encoding="utf-8")
    return path


def test_secrets_come_from_the_environment_and_from_files(
    monkeypatch: pytest.MonkeyPatch, secret_file: Path
) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    for text in (SECRET, "${env:DB_PASSWORD}", f"${{file:{secret_file}}}"):
        password = parse(password=text).password
        assert password is not None
        assert password.get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "${env:NO_SUCH_NAME}",
            "'password' takes a value; the environment variable NO_SUCH_NAME is not set",
        ),
        ("${file:/no/such/file}", "'password' takes a readable file; /no/such/file: No such file"),
    ],
)
def test_a_reference_to_nothing_is_told(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(password=text)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b"hunter2\xff")
    with pytest.raises(OptionError, match="a text file in UTF-8") as caught:
        parse(password=f"${{file:{path}}}")
    assert "hunter2" not in repr(caught.value)


def test_secrets_are_shown_nowhere(secret_file: Path) -> None:
    options = parse(password=SECRET, sharedLimit="x", sharedLimitToken=f"${{file:{secret_file}}}")
    for text in (
        repr(options),
        str(options),
        f"{options}",
        str(options.model_dump()),
        options.model_dump_json(),
    ):
        assert SECRET not in text
    back = pickle.loads(pickle.dumps(options))
    assert back == options
    assert back.password.get_secret_value() == SECRET


@pytest.mark.parametrize(
    "options",
    [
        {"password": SECRET, "nosuch": "1"},
        {"password": SECRET, "channels": "x"},
        {"password": SECRET, "rowsPerSecond": "1", "rowsPerSecondPerTask": "1"},
        {"password": SECRET, "sharedLimit": "5"},
        {"sharedLimitToken": SECRET},
        {"pasword": SECRET},
        {"driver": SECRET, "password": SECRET, "header": "x"},
    ],
)
def test_an_error_beside_a_secret_does_not_show_it(options: dict[str, str]) -> None:
    import traceback

    with pytest.raises(OptionError) as caught:
        parse(**options)
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(
        vars(caught.value)
    )


def test_a_secret_given_twice_and_differently_is_not_shown() -> None:
    with pytest.raises(OptionError) as caught:
        Sample.parse({"password": SECRET, "PASSWORD": "other"})
    assert SECRET not in str(caught.value)
    assert "other" not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (ReadOptions, {"rowsPerSecond": "5", "rowsPerSecondPerTask": "5"}, "contradict"),
        (ReadOptions, {"sharedLimit": "x", "bytesPerSecondPerTask": "5"}, "contradict"),
        (WriteOptions, {"bytesPerSecond": "5", "rowsPerSecondPerTask": "5"}, "contradict"),
        (ReadOptions, {"sharedLimitToken": "x"}, "'sharedLimitToken' needs 'sharedLimit'"),
        (WriteOptions, {"txnAppId": "a"}, "'txnAppId' and 'txnVersion' go together"),
        (WriteOptions, {"txnVersion": "1"}, "'txnAppId' and 'txnVersion' go together"),
        (
            WriteOptions,
            {"txnAppId": "a", "txnVersion": "-1"},
            "'txnVersion' got '-1'; it takes a number of 0 or more",
        ),
        (WriteOptions, {"txn": "nightly"}, "'txn' got 'nightly'; it takes NAME:VERSION"),
        (WriteOptions, {"txn": "nightly:x"}, "'txn' got 'nightly:x'; it takes NAME:VERSION"),
        (WriteOptions, {"txn": ":1"}, "'txn' got ':1'; it takes NAME:VERSION"),
        (
            WriteOptions,
            {"txn": "nightly:1", "txnAppId": "other"},
            "'txn' and 'txnAppId' name one write and differ; give only 'txn'",
        ),
        (
            WriteOptions,
            {"txn": "nightly:1", "txnVersion": "2"},
            "'txn' and 'txnVersion' name one write and differ",
        ),
        (
            WriteOptions,
            {"transactionRows": "2M"},
            "'transactionRows' got 2000000; it takes at most 'capacityRows'",
        ),
        (WriteOptions, {"commit": "both"}, "'commit' got 'both'; it takes one of 'job' or 'task'"),
        (
            WriteOptions,
            {"maxConnections": "0"},
            "'maxConnections' got '0'; it takes a number of 1 or more",
        ),
    ],
)
def test_contradictions(cls: type[Options], options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        cls.parse(options)


@pytest.mark.parametrize(
    ("txn", "name", "version"),
    [
        ("nightly:42", "nightly", 42),
        ("nightly:2026-11-21", "nightly", 20261121),
        ("a:b: 20261121", "a:b", 20261121),
    ],
)
def test_a_transaction_id_means_what_delta_lakes_two_options_mean(
    txn: str, name: str, version: int
) -> None:
    one, _ = WriteOptions.parse({"TXN": txn})
    two, _ = WriteOptions.parse({"txnAppId": name, "txnVersion": version})
    assert (one.txn_app_id, one.txn_version) == (two.txn_app_id, two.txn_version) == (name, version)
    assert WriteOptions.parse({"txn": txn, "txnappid": name, "txnversion": str(version)})[0] == one


@pytest.mark.parametrize("text", ["5", "50k", "1_000", " 7 ", "64MB", "1.5M", "", "  "])
def test_a_shared_limit_is_no_number(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"'sharedLimit' got .*A bare number is a speed: that is 'rowsPerSecond'"
    ):
        ReadOptions.parse({"sharedLimit": text})


@pytest.mark.parametrize("text", ["orders-db", "db1:7077/orders", "5th-avenue"])
def test_a_shared_limit_is_a_name(text: str) -> None:
    assert ReadOptions.parse({"sharedLimit": text})[0].shared_limit == text


def test_defaults_are_those_of_the_docs() -> None:
    read, write = ReadOptions.parse({})[0], WriteOptions.parse({})[0]
    assert (read.capacity_rows, read.capacity_bytes, read.channels, read.channels_per_task) == (
        1_048_576,
        64 << 20,
        None,
        1,
    )
    assert (write.commit, write.transaction_rows, write.txn_app_id, write.max_connections) == (
        None,
        None,
        None,
        None,
    )


def test_every_option_is_camel_case_and_described() -> None:
    for cls in (ReadOptions, WriteOptions):
        for field in cls.model_fields.values():
            assert field.alias is not None
            assert "_" not in field.alias
            assert field.description


@pytest.mark.parametrize(
    ("given_", "kept", "aims"),
    [
        ("off", "off", {}),
        ("AUTO", "auto", {}),
        ("p99<1.25x", "p99<1.25x", {"p99": 1.25}),
        (" cpu < 20% ,p99<2x", "cpu<20%,p99<2x", {"work": 0.2, "p99": 2.0}),
    ],
)
def test_protect_takes_aims(given_: str, kept: str, aims: Mapping[str, float]) -> None:
    options, _ = CommonOptions.parse({"protect": given_})
    assert (options.protect, protection_aims(options.protect)) == (kept, aims)
    assert options.is_limited == (kept != "off")


@pytest.mark.parametrize(
    "given_", ["on", "", "p99<1x", "p99<1.25", "cpu<20", "cpu<0%", "p99<2x,p99<3x", "p99<1.2.3x"]
)
def test_an_aim_that_makes_no_sense_is_refused(given_: str) -> None:
    with pytest.raises(OptionError, match="protect"):
        CommonOptions.parse({"protect": given_})


def test_options_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse().channels = 5  # type: ignore[misc] # frozen, which is the test


def test_errors_travel_between_processes() -> None:
    with pytest.raises(OptionError) as caught:
        parse(channels="x")
    back = pickle.loads(pickle.dumps(caught.value))
    assert (str(back), back.option, back.got, back.takes) == (
        str(caught.value),
        "channels",
        "x",
        "a whole number",
    )


def test_what_is_exported_is_there() -> None:
    assert sorted(spark_channel.options.__all__) == list(spark_channel.options.__all__)
    assert all(hasattr(spark_channel.options, name) for name in spark_channel.options.__all__)
    assert ColumnList is not None


def test_the_listed_options_of_streams_are_those_of_their_model() -> None:
    """A read asks by their names, and does not import the model."""
    assert set(TunnelOptions.names()) == STREAM_OPTIONS
