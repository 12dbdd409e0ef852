"""Addax's httpreader."""

import json
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from spark_channel.connectors.records.paths import path_of
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.document_columns import ddl
from spark_channel.datax.sections import JobSection, refusal, refuse_twice, refused
from spark_channel.datax.value_types import Flag, NotNegative, Object, Positive, Text, Texts
from spark_channel.planning import Endpoint

__all__ = ["http_reader"]


_SIZE = 20
"""Addax's own, of a page whose size the job does not say."""


def _one(value: object) -> object:
    if isinstance(value, list):
        if len(value) != 1:
            raise ValueError('one connection, such as {"url": "http://host/path"}')
        return value[0]
    return value


class HttpProxy(JobSection):
    host: Text
    auth: Text = ""


class HttpConnection(JobSection):
    url: Text
    proxy: HttpProxy | None = None


class PageParameter(JobSection):
    key: Text = ""
    value: NotNegative | None = None


class PageParams(JobSection):
    page_index: PageParameter = PageParameter()
    page_size: PageParameter = PageParameter()


class HttpReader(JobSection):
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


def http_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(HttpReader, parameter)
    connection = plugin.connection or HttpConnection(url=plugin.url, proxy=plugin.proxy)
    if not connection.url:
        raise context.missing("connection.url", "the address of the service")
    method = plugin.method.strip().upper()
    if method not in ("GET", "POST"):
        raise refusal(context.key("method"), plugin.method, "get or post")
    if not plugin.column:
        raise context.missing("column", 'a list of keys, or ["*"]')
    options = {
        "url": connection.url,
        "method": method,
        **_sent(plugin, method, context),
        **_paged(plugin),
        **_columns(plugin.column, context),
    }
    proxy = connection.proxy or plugin.proxy
    if proxy is not None:
        options["proxy"] = _proxy(proxy, context)
    if (plugin.username == "") != (plugin.password == ""):
        raise refused(
            context.key("username"),
            "no password" if plugin.username else "nothing",
            "both, or neither",
        )
    texts = (
        ("resultKey", plugin.result_key),
        ("user", plugin.username),
        ("password", plugin.password),
        ("token", plugin.token),
        ("encoding", plugin.encoding),
        ("timeout", "" if plugin.timeout is None else str(plugin.timeout)),
        ("sslrootcert", plugin.sslrootcert),
        ("headers", json.dumps(plugin.headers) if plugin.headers else ""),
        ("expect", json.dumps(plugin.expect) if plugin.expect else ""),
    )
    return ParsedPlugin(
        Endpoint("http", {**options, **{name: text for name, text in texts if text}})
    )


def _sent(plugin: HttpReader, method: str, context: PluginContext) -> dict[str, str]:
    """What is asked for: with GET in the url, with POST as JSON, where the key "" is the body itself."""
    path = context.key("reqParams")
    if method == "GET":
        inner = next(
            (name for name, value in plugin.req_params.items() if isinstance(value, (dict, list))),
            None,
        )
        if inner is not None:
            raise refusal(
                f"{path}.{inner}", plugin.req_params[inner], "a text or a number, with method get"
            )
    elif "" in plugin.req_params:
        if plugin.is_page:
            raise refused(path, 'the key ""', "names, with isPage: the page is one of them")
        body = plugin.req_params[""]
        return {
            "body": body.strip() if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        }
    sent = {name: value for name, value in plugin.req_params.items() if name}
    return {"params": json.dumps(sent, ensure_ascii=False)} if sent else {}


def _paged(plugin: HttpReader) -> dict[str, str]:
    if not plugin.is_page:
        return {}
    index, size = plugin.page_params.page_index, plugin.page_params.page_size
    return {
        "pageParam": index.key or "pageIndex",
        "firstPage": str(1 if index.value is None else index.value),
        "pageSizeParam": size.key or "pageSize",
        "pageSize": str(size.value or _SIZE),
    }


def _columns(names: tuple[str, ...], context: PluginContext) -> dict[str, str]:
    """Texts, as Addax reads all values."""
    if names == ("*",):
        return {"inferSchema": "false"}
    path, columns = context.key("column"), []
    for number, key_text in enumerate(names):
        name = key_text.strip().removeprefix("$.")
        try:
            path_of(name)
        except ValueError:
            raise refusal(
                f"{path}[{number}]", key_text, "a key, or a path such as DEPT.ID or KK[0].COL1"
            ) from None
        columns.append((name, "string"))
    refuse_twice(path, [name.lower() for name, _ in columns])
    return {"schema": ddl(columns)}


def _proxy(proxy: HttpProxy, context: PluginContext) -> str:
    host = proxy.host.strip() if "://" in proxy.host else f"http://{proxy.host.strip()}"
    if not host.startswith("http://") or "@" in host:
        raise refusal(
            context.key("proxy.host"),
            proxy.host,
            "http://host:port; a SOCKS proxy is not supported",
        )
    if not proxy.auth:
        return host
    user, colon, password = proxy.auth.partition(":")
    if not user or not colon:
        raise refused(context.key("proxy.auth"), "***", "user:password")
    return (
        f"http://{quote(user, safe='')}:{quote(password, safe='')}@{host.removeprefix('http://')}"
    )
