"""A secret is shown nowhere: whatever connector has it, in whatever option, url or form, and whatever fails."""

import base64
import json
import logging
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, ClassVar
from urllib.parse import quote, unquote, unquote_plus

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BeforeValidator, SecretStr

from spark_channel.connectors.base import registry
from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.contract import Reader, WriteContext
from spark_channel.connectors.base.registry import (
    all_connectors,
    describe,
    find_connector,
    load_reader,
)
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.masking import is_secret_name
from spark_channel.options import ReadOptions, Secret, Trait, Url
from spark_channel.planning import Endpoint, EndpointOverrides, Split, TransferSpec
from spark_channel.spark.source import scan_lines


def _quoting(value: object) -> str:
    text = str(value)
    host = text.partition("://")[2].partition("/")[0]
    if "?" in text and "=" in text:
        raise ValueError(
            f"a url without parameters; {text.partition('?')[2]!r} are some, of {host!r}"
        )
    return text


class TheirOptions(ReadOptions):
    """A third party's: its errors quote what they were given."""

    url: Annotated[Url, BeforeValidator(_quoting)]
    pin: Secret | None = None
    kept: str | None = None


class TheirReader(Reader):
    Options: ClassVar[type[ReadOptions]] = TheirOptions
    options: TheirOptions

    def schema(self) -> pa.Schema:
        options = self.options
        pin = options.pin and options.pin.get_secret_value()
        try:
            raise OSError(f"cannot reach {options.url} with pin {pin}")
        except OSError as error:
            raise SourceError(options.hide(f"their server: {error}")) from options.hidden(error)

    def split(self, advice: int) -> list[Split]:
        return []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return iter(())


THEIRS = Connector(
    "theirs", f"{__name__}:TheirReader", None, schemes=("theirs",), secrets=("url", "pin")
)


@pytest.fixture(autouse=True)
def third_party(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_third_parties", lambda: {"theirs": THEIRS})


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """Bound, and not listening: connections are refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


RARE = "QXZJ\u0416\u9f98\u00df"
OTHERS = "@#/?%:;&=+[]{}()<>'\"`\\ ,!$^|~\n\t.-_*0123456789"
"""At least every third character of a secret is rare, so that no four of them are in a message by chance."""
SECRETS = st.lists(
    st.tuples(st.sampled_from(RARE), st.text(st.sampled_from(OTHERS), max_size=2)),
    min_size=8,
    max_size=8,
).map(lambda pairs: "".join(char + more for char, more in pairs)[:16])
PARAMETERS = (
    "password",
    "token",
    "sslpassword",
    "secret",
    "accountKey",
    "sig",
    "aws_secret_access_key",
    "sasl.password",
    "foo",
)
OF_JSON = {
    "storageoptions": ("aws_secret_access_key", "password", "account_key", "nosuch.key"),
    "clientproperties": ("sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret"),
    "catalogproperties": ("password", "token", "credential", "s3.secret-access-key"),
    "headers": ("Authorization", "X-Api-Key"),
    "params": ("token", "password"),
    "driveroptions": ("password", "x.token"),
}
REQUIRED = {
    "index": "i",
    "collection": "c",
    "driver": "postgresql",
    "database": "d",
    "dbtable": "t",
    "topic": "t",
    "bootstrap_servers": "127.0.0.1:1",
    "key_columns": "a",
}
NO_FOLDER = "/dev/null/folder"
"""No user can make it, root included."""
SHORT = {
    "connect_timeout": "0.05",
    "query_timeout": "1",
    "retry_timeout": "0.01",
    "socket_timeout": "0.5",
    "lock_timeout": "0.01",
    "load_timeout": "1",
}
SCHEMA = pa.schema([("a", pa.int64())])
STORES = ("s3", "gs", "abfss", "hdfs", "sftp", "ftp", "xx")
SLOW = ("kafka", "mongodb")
"""Their drivers look for a server for a second, whatever their options say."""


def url_with(draw: Any, connector: Connector, name: str, secret: str, port: int) -> str:
    """A url that holds the secret: plain or percent-encoded, in the login or in a parameter."""
    is_path = "path" in name
    known = ("http",) if name == "proxy" else connector.schemes or ("http", "https")
    scheme = draw(st.sampled_from(STORES if is_path else known))
    if connector.dialect and draw(st.booleans()):
        scheme = f"jdbc:{scheme}"
    text = draw(st.sampled_from([secret, quote(secret, safe=""), quote(secret)]))
    wrong = ["127.0.0.1:99999999", "127.0.0.1:x", "", "h:1,[::1"]
    host = draw(st.sampled_from([f"127.0.0.1:{port}"] * 4 + wrong))
    tail = draw(st.sampled_from(["", "/0", "/d", "/d?x=1", "/a/b.csv", "#x"]))
    if draw(st.booleans()):
        return f"{scheme}://{draw(st.sampled_from(['user', '']))}:{text}@{host}{tail}"
    parameter = draw(st.sampled_from(PARAMETERS))
    if not is_path and parameter in ("password", "accountKey") and draw(st.booleans()):
        return f"{scheme}://{host}/d;{parameter}={text}"
    return f"{scheme}://{host}/d?{parameter}={text}{draw(st.sampled_from(['', '&x=1', '&user=u']))}"


def value_with(draw: Any, name: str, secret: str, port: int) -> str:
    """The value of an option that is secret as a whole."""
    if name == "uri":  # in the syntax of libpq
        texts = [
            f"postgresql://user:{quote(secret, safe='')}@127.0.0.1:{port}/d",
            f"host=127.0.0.1 port={port} password={secret}",
            f"postgresql://127.0.0.1:{port}/d?password={secret}",
        ]
        return str(draw(st.sampled_from(texts)))
    if name not in OF_JSON:
        return secret
    made = {draw(st.sampled_from(OF_JSON[name])): secret}
    if name == "catalogproperties":
        made |= {"type": "rest", "uri": f"http://user:{secret}@127.0.0.1:{port}"}
    text = json.dumps(made)
    return str(draw(st.sampled_from([text, text, text, text[:-1]])))


@st.composite
def cases(
    draw: Any, connector: Connector, half: str, port: int
) -> tuple[str, dict[str, Any], bool]:
    """A secret, options that hold it, and whether the connector is opened with them."""
    model, secret = connector.options_class(half), draw(SECRETS)
    fields = {(field.alias or name): name for name, field in model.model_fields.items()}
    places = [each for each in fields if each.lower() in model.with_trait(Trait.HOLDS_LOGIN)]
    wholes = [each for each in fields if each.lower() in model.secrets()]
    made: dict[str, Any] = {}
    for alias, name in fields.items():
        if name in REQUIRED or name in SHORT:
            made[alias] = {**REQUIRED, **SHORT}[name]
    if "timeout" in fields:
        made["timeout"] = "1" if connector.name == "kafka" else "0.2"
    if connector.name == "adbc":
        places.remove("url")  # it is refused
    elif "url" in fields:
        made["url"] = f"{(*connector.schemes, 'http')[0]}://127.0.0.1:{port}"
    elif "path" in fields:
        made["path"] = NO_FOLDER
    key = draw(st.sampled_from([*wholes, *places * 2]))
    if key in places:
        value = url_with(draw, connector, key.lower(), secret, port)
        made[key] = value
        if key == "paths":
            del made["path"]
            made[key] = json.dumps([value])
    else:
        value = value_with(draw, key.lower(), secret, port)
        made[key] = value
        if key == "password" and "user" in fields:
            made["user"] = "user"
        if key == "sharedLimitToken":
            made["sharedLimit"] = "h:1/x"
    match draw(st.sampled_from(["", "", "", "unknown", "bad value", "wrong type", "twice"])):
        case "unknown":
            made["nosuch"] = value
        case "bad value":
            made["capacityRows"] = "x"
        case "wrong type":
            wrong = [[value], {"a": value}, value.encode(), (value, 1)]
            made[key] = draw(st.sampled_from(wrong))
        case "twice":
            made[key.upper()] = f"{value}x"
    far = [f"{scheme}:" for scheme in STORES[:4]]
    is_far = any(each in str(made.get(name)) for each in far for name in ("path", "paths"))
    rarely = st.integers(0, 11).map(lambda number: number == 0)
    return secret, made, not is_far and (connector.name not in SLOW or draw(rarely))


def shown_by(error: BaseException) -> Iterator[str]:
    yield "".join(traceback.format_exception(error))
    yield "".join(traceback.format_exception(pickle.loads(pickle.dumps(error))))
    link: BaseException | None = error
    while link is not None:
        yield f"{link} {link!r} {link.args!r} {vars(link)!r}"
        link = link.__cause__ or link.__context__


def shown(
    connector: Connector, half: str, options: dict[str, Any], *, opens: bool
) -> Iterator[str]:
    """Each message about these options, and about all that fails with them."""
    named = {half: connector.name, **options}
    end = Endpoint(connector.name, options, parts=(EndpointOverrides(options),))
    yield f"{connector.options_class(half).shown(named)} {end!r} {TransferSpec(end, end)!r}"
    made: Any = None

    def tried(work: Callable[[], Any]) -> Iterator[str]:
        try:
            yield repr(work())
        except Exception as error:
            yield from shown_by(error)

    def parsed() -> Any:
        nonlocal made
        made, warnings = (
            connector.reader_with(options) if half == "reader" else connector.writer_with(options)
        )
        return made, str(made), made.options, f"{made.options}", describe(made.options), warnings

    def held() -> Any:
        with made.hold():
            return made.schema(), made.split(1)

    yield from tried(parsed)
    yield from tried(lambda: find_connector(options, half))
    if half == "reader":
        yield from tried(lambda: scan_lines(named))
    if made is not None and opens:
        steps = [made.schema, held] if half == "reader" else [made.exists, made.health]
        if half == "writer":
            steps.append(lambda: made.prepare(WriteContext("job"), SCHEMA))
        for step in steps:
            yield from tried(step)


def leak(secret: str, text: str) -> str:
    """Where four characters of the secret are in the text, also escaped; "" = nowhere."""
    views = [text, unquote(text), unquote_plus(text), unquote(unquote(text))]
    with suppress(UnicodeDecodeError):
        views.append(text.encode("latin-1", "backslashreplace").decode("unicode_escape"))
    pieces = {secret[start : start + 4] for start in range(len(secret) - 3)}
    pieces |= {base64.b64encode(f"{user}:{secret}".encode()).decode() for user in ("user", "")}
    for view in views:
        for piece in pieces:
            if (at := view.find(piece)) >= 0:
                return view[max(0, at - 150) : at + 50]
    return ""


HALVES = [
    (connector, half)
    for connector in [*all_connectors(), THEIRS]
    for half in ("reader", "writer")
    if getattr(connector, half)
]


@pytest.mark.parametrize(
    ("connector", "half"), HALVES, ids=[f"{each.name}-{half}" for each, half in HALVES]
)
def test_a_secret_is_shown_nowhere(
    connector: Connector, half: str, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    # Not shrunk: each try waits for a server, and the first example says enough.
    @settings(max_examples=25, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(cases(connector, half, closed_port))
    def check(case: tuple[str, dict[str, Any], bool]) -> None:
        secret, options, opens = case
        caplog.clear()
        for text in [*shown(connector, half, options, opens=opens), caplog.text]:
            found = leak(secret, text)
            assert not found, f"{options!r} shows {secret!r}: {found}"

    check()


def test_an_option_that_sounds_like_a_secret_is_one_by_its_type() -> None:
    found = {
        (connector.name, name)
        for connector, half in HALVES
        for model in [connector.options_class(half)]
        for name, field in model.model_fields.items()
        if is_secret_name(name) and (field.alias or name).lower() not in model.secrets()
    }
    paths = {(name, "sslkey") for name in ("clickhouse", "kafka", "mysql", "postgresql")}
    assert found == {("mongodb", "auth_source"), *paths}


@pytest.mark.parametrize(
    "url",
    [
        "mysql://sp:hunter?S3cret=1@host/a",
        "mysql://sp:1234?S3cret=1@host/a",
        "mysql://sp:hunter/S3cret@host/a",
        "postgresql://sp:hunter?S3cret@host/a",
        "clickhouse://sp:hunter#S3cret@host/a",
        "clickhouse://sp:ab@hunter?S3cret=1@host/a",
        "sp:S3cret@host",
        "hunter@S3cret:1",
        "clickhouse://host/d;password=hunterS3cret",
        "mariadb://sp@x:hunter/S3cret@h:1/a?x=a@b",
        "sqlite://sp:hunter/S3cret@host/a.db",
        "redis://sp:hunter?S3cret@host/0",
    ],
)
def test_an_unclear_login_is_refused_without_any_part_of_it(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        load_reader({"url": url, "dbtable": "t"})
    for text in shown_by(caught.value):
        assert "hunter" not in text
        assert "S3cret" not in text


def test_an_at_sign_that_is_no_part_of_a_login_stays() -> None:
    for url in (
        "jdbc:mysql://h:3306/d?user=me&password=p@ss",
        "mysql://me:p@ss@h/d",
        "jdbc:postgresql://h/d?user=me&password=p@ss",
        "postgresql://me:p%23s%2Fs@h1:1,[::1]:2/d",
    ):
        options: Any = load_reader({"url": url, "dbtable": "t"})[0].options
        assert isinstance(options.password, SecretStr)
        assert options.password.get_secret_value().startswith("p")


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "clickhouse", "redis", "mongodb"])
def test_no_variable_of_an_error_holds_the_login(scheme: str) -> None:
    """Tools that report errors show the variables of each frame."""
    pytest.importorskip({"mysql": "pymysql", "clickhouse": "clickhouse_connect"}.get(scheme, "sys"))
    secret = "".join(("Zq7", "sec", "ret"))
    options = {
        "postgresql": {"dbtable": "t", "user": "u"},
        "mysql": {"dbtable": "t", "user": "u"},
        "clickhouse": {"dbtable": "t", "user": "u"},
        "redis": {"keys": "a"},
        "mongodb": {"collection": "t", "user": "u", "connectTimeout": "1"},
    }[scheme]
    url = f"{scheme}://127.0.0.1:9/{'0' if scheme == 'redis' else 'd'}"
    reader = load_reader({"url": url, "password": secret, **options})[0]
    with pytest.raises(ChannelError) as failed:
        reader.schema()
    link: BaseException | None = failed.value
    while link is not None:
        frames = [frame for frame, _ in traceback.walk_tb(link.__traceback__)]
        for frame in frames:
            if frame.f_code.co_filename != __file__:
                held = [
                    name for name, value in list(frame.f_locals.items()) if secret in repr(value)
                ]
                assert held == [], frame
        link = link.__cause__ or link.__context__


@pytest.mark.parametrize("half", ["reader", "writer"])
def test_what_psycopg_keeps_of_a_connection_that_failed_is_not_shown(
    half: str, closed_port: int
) -> None:
    secret = "QXZJ\u9f98QXZJ\u9f98QXZJ"
    options = {
        "url": f"postgresql://127.0.0.1:{closed_port}",
        "dbtable": "t",
        "sslpassword": secret,
        "retryTimeout": "0.01",
    }
    connector = find_connector({half: "postgresql"}, half)
    texts = list(shown(connector, half, options, opens=True))
    assert any("Connection refused" in text for text in texts)
    assert not any(leak(secret, text) for text in texts)
