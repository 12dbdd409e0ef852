"""Logins in urls and options are shown nowhere, whatever way they are written."""

import os
import pickle
import traceback
from collections.abc import Mapping
from typing import Annotated, ClassVar

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.registry import find_connector
from spark_channel.connectors.files.options import CsvReadOptions, ParquetWriteOptions
from spark_channel.errors import OptionError, TargetError
from spark_channel.masking import MASK, is_clear, mask_text, mask_untyped, mask_url, without_login
from spark_channel.options import Options, ReadOptions, Secret, Trait, Url
from spark_channel.planning import Endpoint, EndpointOverrides

PLACES = [
    (
        "mysql://root:hunter2@db/shop?sslpassword=hunter2&x=1",
        "mysql://root:***@db/shop?sslpassword=***&***",
    ),
    (
        "jdbc:mysql://db:3306/shop?user=me&password=hunter2",
        "jdbc:mysql://db:3306/shop?user=me&password=***",
    ),
    ("postgresql://me:p@hunter2@h1:1,h2:2/d", "postgresql://me:***@h1:1,h2:2/d"),
    ("postgresql://me:p/hunter2@h/d", "postgresql://me:***@h/d"),
    ("postgresql://me:p?hunter2@h/d", "postgresql://***"),
    ("postgresql://me:p;hunter2@h/d", "postgresql://***"),
    ("postgresql://me:pw@h/d?password=a@hunter2", "postgresql://***"),
    ("http://h/d?mail=a@b&password=hunter2", "http://h/d?***"),
    ("jdbc:oracle:thin:scott/hunter2@//db:1521/orcl", "jdbc:oracle:thin:scott/***@//db:1521/orcl"),
    ("jdbc:oracle:thin:scott/a@b/hunter2@db:1521:x", "jdbc:oracle:thin:scott/***@db:1521:x"),
    ("jdbc:oracle:thin:scott/a?hunter2@db:1521:x", "jdbc:oracle:thin:***"),
    ("jdbc:oracle:thin:@//db:1521/orcl", "jdbc:oracle:thin:@//db:1521/orcl"),
    ("s3://KEY:hun/ter+hunter2@bucket/a/b.csv", "s3://KEY:***@bucket/a/b.csv"),
    ("s3://bucket/a?region=eu&secret_key=hunter2", "s3://bucket/a?region=eu&secret_key=***"),
    (
        "jdbc:sqlserver://h:1433;user=sa;password=a;hunter2;databaseName=q",
        "jdbc:sqlserver://h:1433;user=sa;password=***;***;databaseName=q",
    ),
    (
        "jdbc:db2://h:50000/d:user=me;password=hunter2;",
        "jdbc:db2://h:50000/d:user=me;password=***;",
    ),
    ("jdbc:postgresql://h/d?password=a&hunter2", "jdbc:postgresql://h/d?password=***&***"),
    ("me:hunter2@host/d", "me:***@host/d"),
    ("md:?motherduck_token=hunter2", "md:?motherduck_token=***"),
    # nothing to hide
    ("s3://bucket/mail=a@b/c", "s3://bucket/mail=a@b/c"),
    (
        "abfss://container@account.dfs.core.windows.net/p",
        "abfss://container@account.dfs.core.windows.net/p",
    ),
    ("/data/part-?-[0-9]*.csv", "/data/part-?-[0-9]*.csv"),
    ("sqlite:/data/a b#c.db", "sqlite:/data/a b#c.db"),
    ("mysql://h/d?sslMode=required", "mysql://h/d?sslMode=required"),
]


@pytest.mark.parametrize(("url", "shown"), PLACES)
def test_a_url_shows_its_place_and_hides_its_login(url: str, shown: str) -> None:
    assert mask_url(url) == shown
    assert "hunter2" not in mask_url(url) + without_login(url) + mask_untyped("url", url)
    assert mask_text(url) == (shown if "@" in url or "://" in url or "jdbc:" in url else url)


def test_a_place_is_without_login_and_parameters() -> None:
    assert without_login("mysql://me:pw@h:1/d?x=1") == "mysql://h:1/d"
    assert without_login("jdbc:oracle:thin:me/pw@//h:1/d") == "jdbc:oracle:thin://h:1/d"
    assert without_login("jdbc:sqlserver://h;user=sa") == "jdbc:sqlserver://h"


class Theirs(ReadOptions):
    """A third party's options: nothing but their types says what is secret."""

    url: Url | None = None
    pin: Secret | None = None
    fast: Annotated[int | None, Trait.SAME_ROWS] = None
    style: str | None = None


def test_types_say_what_is_secret() -> None:
    given = {
        "pin": "1234",
        "STYLE": "any text: not a secret",
        "url": "x://h/d?style=plain&pin=1234&other=text",
        "fast": 3,
        "sharedLimitToken": "t",
        "unknown": "who knows",
        "number": "7",
    }
    assert Theirs.shown(given) == {
        "pin": MASK,
        "STYLE": "any text: not a secret",
        "url": "x://h/d?style=plain&pin=***&***",
        "fast": "3",
        "sharedLimitToken": MASK,
        "unknown": MASK,
        "number": "7",
    }
    assert Theirs.secrets() == {"pin", "sharedlimittoken"}
    assert Theirs.with_trait(Trait.SAME_ROWS) == {"fast"}


def test_traits_and_secrets_are_known_by_every_name_of_an_option() -> None:
    class Aliased(Options):
        aliases: ClassVar[Mapping[str, str]] = {"pwd": "password"}
        password: Secret | None = None

    assert Aliased.secrets() == {"password", "pwd"}
    assert Aliased.shown({"Pwd": "hunter2"}) == {"Pwd": MASK}


@pytest.mark.parametrize(
    "options",
    [
        {
            "reader": "adbc",
            "driver": "x",
            "uri": "Server=h;Pwd=hunter2",
            "driverOptions": '{"a.key": "hunter2"}',
        },
        {"reader": "adbc", "driver": "x", "URI": "postgresql://me:hunter2@h/d"},
        {"reader": "postgresql", "url": "postgresql://h/d", "sslPassword": "hunter2"},
        {"url": "mysql://me:hun?ter2@h/d", "password": "hun?ter2"},
        {"reader": "csv", "path": "s3://KEY:hun/ter2@bucket/a"},
        {"reader": "csv", "paths": '["s3://KEY:hunter2@bucket/a", "s3://KEY:hun/ter2@bucket/b"]'},
        {"reader": "csv", "paths": ["s3://KEY:hunter2@bucket/a"]},
        {
            "url": "jdbc:oracle:thin:scott/hunter2@h",
            "apiSecret": "hunter2",
            "connectionProvider": "hunter2",
        },
    ],
)
def test_no_connector_s_options_show_a_secret(options: dict[str, object]) -> None:
    try:
        model: type[Options] = find_connector(
            {key.lower(): value for key, value in options.items()}, "reader"
        ).options_class("reader")
    except OptionError:  # a format of Spark
        model = Options
    shown = str(model.shown(options)) + repr(
        Endpoint("x", options, parts=(EndpointOverrides(options),))
    )
    for secret in ("hunter2", "hun?ter2", "hun/ter2", "ter2"):
        assert secret not in shown


@pytest.mark.parametrize(
    "options",
    [
        {"url": "postgresql://me:hunter\udc80cat5@h/d"},
        {"url": "postgresql://h/d?password=hunter\udc80cat5"},
        {"url": "mongodb://me:hunter\udc80cat5@[::1/d", "collection": "t"},
        {"url": "postgresql://h/d", "password": "hunter\udc80cat5"},
        {"url": "postgresql://h/d", "password": "${env:SHOP_PASSWORD}"},
        {"url": "postgresql://h/d", "password": "hunter\udc80cat5", "misspelt": "1"},
        {"reader": "csv", "path": "/a", "storageOptions": '{"secret_key": "hunter\udc80cat5"}}'},
    ],
)
def test_a_secret_that_has_no_utf8_form_is_refused_and_not_shown(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one byte of an environment variable is; the drivers' own errors quote the whole text."""
    monkeypatch.setitem(os.environ, "SHOP_PASSWORD", "hunter\udc80cat5")
    with pytest.raises(OptionError) as caught:
        load_reader({"dbtable": "t"} | options if "url" in options else options)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.args)
    assert "hunter" not in shown.replace("SHOP_PASSWORD", "")
    assert "cat5" not in shown


def test_options_as_models_show_no_login_either() -> None:
    path = "s3://KEY:hun/ter2@bucket/a"
    for options in (
        CsvReadOptions.parse({"path": path})[0],
        CsvReadOptions.parse({"paths": f'["{path}"]'})[0],
        ParquetWriteOptions.parse({"path": path, "dirtyRowsPath": path})[0],
    ):
        assert "ter2" not in repr(options) + str(options)
        assert "s3://KEY:***@bucket/a" in repr(options)
    assert CsvReadOptions.parse({"path": path})[0].path == path


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER ROLE x PASSWORD 'hunter2!'",
        "ALTER USER x WITH ENCRYPTED PASSWORD E'hun\\'hunter2!' VALID UNTIL 'y'",
        "ALTER ROLE x PASSWORD $a$hunter2!$a$ VALID",
        "ALTER ROLE x PASSWORD 'hunter2!",
        "ALTER ROLE x PASSWORD   'it''s hunter2!'",
        "CREATE USER u IDENTIFIED BY 'hunter2!' REQUIRE SSL",
        "CREATE USER u IDENTIFIED WITH caching_sha2_password BY 'hunter2!'",
        "CREATE USER u IDENTIFIED VIA mysql_native_password USING 'hunter2!'",
        "SET PASSWORD FOR 'u'@'%' = PASSWORD('hunter2!')",
        "SET PASSWORD = 'hunter2!'",
        "CREATE USER MAPPING FOR u SERVER s OPTIONS (user 'a', password 'hunter2!')",
        "CREATE SUBSCRIPTION s CONNECTION 'host=h password=hunter2! x=1' PUBLICATION p",
        "SELECT dblink('host=h password=''hunter2!''', 'SELECT 1')",
        "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'hunter2!')",
        repr("""ALTER ROLE "x" PASSWORD 'hunter2!'"""),
        "LINE 1: ALTER ROLE nobody PASSWORD 'hunter2!'\n                          ^",
    ],
)
def test_a_password_in_a_statement_is_shown_in_no_error(statement: str) -> None:
    said = OptionError(f"option 'preSql' got {statement}", option="preSql", got=statement)
    assert "hunter2" not in f"{said} {said.got} {pickle.loads(pickle.dumps(said))!r}"
    assert "hunter2" not in str(TargetError(statement))
    assert statement.split(maxsplit=1)[0].strip("'") in str(said)


@pytest.mark.parametrize(
    "text",
    [
        "the login is refused: see 'user' and 'password'",
        "options 'user' and 'password': give both, or 'passfile'",
        'password authentication failed for user "tester"',
        "column 'password' holds 'x', which is not a number",
        "ALTER ROLE x PASSWORD NULL",
    ],
)
def test_a_message_about_passwords_stays(text: str) -> None:
    assert str(TargetError(text)) == text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:ab@cdef/gh?application_name=1@host",
        "mysql://u:ab@cdef/gh?charset=1@host",
        "clickhouse://u:ab@cdef/gh?x=1@host",
        "jdbc:postgresql://u:ab@cdef:5432/gh?application_name=1@host/db",
    ],
)
def test_an_at_behind_a_login_is_refused_since_the_password_may_hold_all_of_it(url: str) -> None:
    with pytest.raises(OptionError, match="not clear where its login ends") as refused:
        load_reader({"url": url, "dbtable": "t"})
    assert "cdef" not in str(refused.value)
    assert is_clear("postgresql://cdef/gh?application_name=me@corp")
