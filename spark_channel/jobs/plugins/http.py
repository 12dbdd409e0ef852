"""Addax's httpreader."""

import json
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from spark_channel.connectors.records.paths import path_of
from spark_channel.jobs.place import End, Place
from spark_channel.jobs.plugins.documents import ddl
from spark_channel.jobs.values import Flag, NotNegative, Positive, Section, Text, Texts, refusal, refused
from spark_channel.planning import Endpoint

__all__ = ["http_reader"]

_SIZE = 20
"""Addax's own, of a page whose size the job does not say."""


def _object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


def _one(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) != 1:
            raise ValueError('one connection, such as {"url": "http://host/path"}')
        return value[0]
    return value


Object = Annotated[dict[str, Any], BeforeValidator(_object)]


class HttpProxy(Section):
    host: Text
    auth: Text = ""


class HttpConnection(Section):
    url: Text
    proxy: HttpProxy | None = None


class PageParameter(Section):
    key: Text = ""
    value: NotNegative | None = None


class PageParams(Section):
    page_index: PageParameter = PageParameter()
    page_size: PageParameter = PageParameter()


class HttpReader(Section):
    ignored: ClassVar[dict[str, str]] = {
        "sslVerify": "certificates are always verified; sslrootcert names another CA",
        "prefetchPages": "pages are read one after another",
    }
    refused: ClassVar[dict[str, str]] = {
        "authConfig": "get the token before the job, and give it as token, such as ${env:TOKEN}",
        "maxPages": "the rows of the pages behind it would be missing; ask for fewer with reqParams",
    }

    connection: Annotated[HttpConnection | None, BeforeValidator(_one)] = None
    url: Text = ""
    proxy: HttpProxy | None = None
    req_params: Object = Field(default_factory=dict)
    result_key: Text = ""
    method: Text = "get"
    column: Texts = ()
    username: Text = ""
    password: Text = ""
    token: Text = ""
    headers: Object = Field(default_factory=dict)
    encoding: Text = ""
    timeout: Positive | None = None
    is_page: Flag = False
    page_params: PageParams = PageParams()
    expect: Object | None = None
    sslrootcert: Text = ""


def http_reader(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(HttpReader, parameter)
    connection = given.connection or HttpConnection(url=given.url, proxy=given.proxy)
    if not connection.url:
        raise place.missing("connection.url", "the address of the service")
    method = given.method.strip().upper()
    if method not in ("GET", "POST"):
        raise refusal(place.key("method"), given.method, "get or post")
    if not given.column:
        raise place.missing("column", 'a list of keys, or ["*"]')
    options = {
        "url": connection.url,
        "method": method,
        **_sent(given, method, place),
        **_paged(given),
        **_columns(given.column, place),
    }
    proxy = connection.proxy or given.proxy
    if proxy is not None:
        options["proxy"] = _proxy(proxy, place)
    if (given.username == "") != (given.password == ""):
        raise refused(
            place.key("username"), "no password" if given.username else "nothing", "both, or neither"
        )
    more = (
        ("resultKey", given.result_key), ("user", given.username), ("password", given.password), ("token", given.token),
        ("encoding", given.encoding), ("timeout", "" if given.timeout is None else str(given.timeout)),
        ("sslrootcert", given.sslrootcert), ("headers", json.dumps(given.headers) if given.headers else ""),
        ("expect", json.dumps(given.expect) if given.expect else ""),
    )  # fmt: skip
    return End(Endpoint("http", {**options, **{name: text for name, text in more if text}}))


def _sent(given: HttpReader, method: str, place: Place) -> dict[str, str]:
    """What is asked for: with GET in the url, with POST as JSON, where the key "" is the body itself."""
    path = place.key("reqParams")
    if method == "GET":
        inner = next(
            (name for name, value in given.req_params.items() if isinstance(value, (dict, list))), None
        )
        if inner is not None:
            raise refusal(f"{path}.{inner}", given.req_params[inner], "a text or a number, with method get")
    elif "" in given.req_params:
        if given.is_page:
            raise refused(path, 'the key ""', "names, with isPage: the page is one of them")
        body = given.req_params[""]
        return {"body": body.strip() if isinstance(body, str) else json.dumps(body, ensure_ascii=False)}
    sent = {name: value for name, value in given.req_params.items() if name}
    return {"params": json.dumps(sent, ensure_ascii=False)} if sent else {}


def _paged(given: HttpReader) -> dict[str, str]:
    if not given.is_page:
        return {}
    index, size = given.page_params.page_index, given.page_params.page_size
    return {
        "pageParam": index.key or "pageIndex",
        "firstPage": str(1 if index.value is None else index.value),
        "pageSizeParam": size.key or "pageSize",
        "pageSize": str(size.value or _SIZE),
    }


def _columns(names: tuple[str, ...], place: Place) -> dict[str, str]:
    """Texts, as Addax reads all values."""
    if names == ("*",):
        return {"inferSchema": "false"}
    path, columns = place.key("column"), []
    for number, given in enumerate(names):
        name = given.strip().removeprefix("$.")
        try:
            path_of(name)
        except ValueError:
            raise refusal(
                f"{path}[{number}]", given, "a key, or a path such as DEPT.ID or KK[0].COL1"
            ) from None
        columns.append((name, "string"))
    if len({name.lower() for name, _ in columns}) < len(columns):
        raise refused(path, "a key twice", "each key once")
    return {"schema": ddl(columns)}


def _proxy(proxy: HttpProxy, place: Place) -> str:
    host = proxy.host.strip() if "://" in proxy.host else f"http://{proxy.host.strip()}"
    if not host.startswith("http://") or "@" in host:
        raise refusal(place.key("proxy.host"), proxy.host, "http://host:port; a SOCKS proxy is not supported")
    if not proxy.auth:
        return host
    user, colon, password = proxy.auth.partition(":")
    if not user or not colon:
        raise refused(place.key("proxy.auth"), "***", "user:password")
    return f"http://{quote(user, safe='')}:{quote(password, safe='')}@{host.removeprefix('http://')}"
