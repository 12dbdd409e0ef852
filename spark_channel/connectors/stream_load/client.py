"""The options of Stream Load, one load over HTTP, and SQL over MySQL's protocol on a second port."""

import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from math import ceil
from typing import IO, Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from spark_channel.connectors.base.network import (
    BUSY,
    Busy,
    basic,
    connection_to,
    untrusted,
    whole,
)
from spark_channel.connectors.stream_load.options import StreamLoadOptions, host_and_port
from spark_channel.errors import MissingPackageError, TargetError

__all__ = ["Busy", "Load", "run", "table_columns"]


_BLOCK = 1 << 20
_LONGEST = 16 << 20
"""Bytes of an answer: it is held in memory."""
_MOST_REDIRECTS = 4
_DONE = ("FINISHED", "VISIBLE", "COMMITTED")


class _Response(http.client.HTTPResponse):
    """Sends the body once the server asks for it with 100 Continue: a frontend redirects before that."""

    send_body: Callable[[], None] | None = None

    def _read_status(self) -> tuple[str, int, str]:
        status_line: tuple[str, int, str] = super()._read_status()  # type: ignore[misc] # not in typeshed
        if status_line[1] == http.client.CONTINUE and self.send_body is not None:
            send, self.send_body = self.send_body, None
            send()
        return status_line


class Load:
    """The requests of one writer."""

    def __init__(self, options: StreamLoadOptions) -> None:
        self._options = options
        self.login = basic(*options.login)
        path = f"/api/{quote(options.database, safe='')}/{quote(options.dbtable, safe='')}"
        self.load_path, self.schema_path = f"{path}/_stream_load", f"{path}/_schema"

    def send(
        self, label: str, headers: Mapping[str, str], body: IO[bytes], size: int
    ) -> dict[str, Any]:
        """Load `size` bytes of `body` under `label`. Returns the server's answer, {} if the label was loaded before.

        Raises:
            Busy: not known. TargetError: refused; none of the rows are loaded.
        """
        sent = {
            **headers,
            "label": label,
            "Expect": "100-continue",
            "Content-Length": str(size),
            "timeout": str(int(self._options.load_timeout)),
            "strict_mode": "true",
            "max_filter_ratio": "0",
        }

        def blocks() -> Iterator[bytes]:
            body.seek(0)
            remaining = size
            while remaining > 0 and (block := body.read(min(_BLOCK, remaining))):
                remaining -= len(block)
                yield block

        status, text = self.ask("PUT", self.load_path, sent, blocks)
        return self._judged(status, text, label)

    def _judged(self, status: int, text: bytes, label: str) -> dict[str, Any]:
        try:
            answer = json.loads(text)
            word = str(answer.get("Status") or answer.get("status") or "")
        except (ValueError, AttributeError, RecursionError):
            raise Busy(
                f"HTTP {status}, and the answer is not JSON: {self.login.beginning(text)!r}"
            ) from None
        message = self.login.shown(str(answer.get("Message") or answer.get("msg") or ""))[:400]
        if word in ("Success", "Publish Timeout"):
            return dict(answer)
        if word == "Label Already Exists":
            state = str(answer.get("ExistingJobStatus") or "")
            if state in _DONE:
                return {}
            raise Busy(f"a load with label {label} is {state or 'not ended'}: {message}")
        filtered = answer.get("NumberFilteredRows") or 0
        rejected_rows = f"; {filtered} rows do not fit their columns" if filtered else ""
        url = self.login.shown(str(answer.get("ErrorURL") or ""))
        where = f"; the server shows them at {url}" if url else ""
        raise self._refused(f"{word or f'HTTP {status}'}: {message}{rejected_rows}{where}")

    def _refused(self, reason: str) -> TargetError:
        return TargetError(
            f"{self._options.address}: the load was refused: {reason}. None of its rows are loaded; "
            "correct them, or the table's columns"
        )

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Callable[[], Iterator[bytes]] | None = None,
    ) -> tuple[int, bytes]:
        """(status, answer) of the first frontend that answers, or of where it redirects."""
        failed: Exception | None = None
        for frontend in self._options.frontends:
            try:
                return self._followed(method, urljoin(frontend, path), headers, body)
            except ssl.SSLCertVerificationError as error:
                raise TargetError(f"{self._options.address}: {untrusted(error)}") from error
            except (OSError, http.client.HTTPException) as error:
                failed = error
        raise Busy(
            f"no server answers: {type(failed).__name__} {self.login.shown(str(failed))[:200]}"
        ) from (failed and self._options.hidden(failed))

    def _followed(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Callable[[], Iterator[bytes]] | None,
    ) -> tuple[int, bytes]:
        first = urlsplit(url)
        for _ in range(_MOST_REDIRECTS):
            status, location, text = self._once(method, urlsplit(url), headers, body)
            if status not in (301, 302, 307, 308):
                if status in BUSY:
                    raise Busy(f"the server is busy: HTTP {status} {self.login.beginning(text)}")
                if status in (401, 403):
                    raise TargetError(
                        f"{self._options.address}: HTTP {status}: {self.login.beginning(text)}; check 'user', "
                        "'password' and the right LOAD on the table"
                    )
                return status, text
            try:
                url = urljoin(url, location or "")
                target = urlsplit(url)
                target.port  # noqa: B018 - it is parsed here
            except ValueError:  # its text has the login that a frontend puts into the url
                raise TargetError(
                    f"{self._options.address}: the server redirects the load to what is not a url; check 'url'"
                ) from None
            self._check_redirect(first, target)
        raise TargetError(
            f"{self._options.address}: more than {_MOST_REDIRECTS} redirects; check 'url'"
        )

    def _check_redirect(self, first: SplitResult, target: SplitResult) -> None:
        """Check that the login may be sent to the target."""
        host = (target.hostname or "").lower()
        fault = ""
        if target.scheme not in ("http", "https") or not host:
            fault = "which is not a url of a server"
        elif first.scheme == "https" and target.scheme != "https":
            fault = "without TLS, and the login would be readable on the way"
        elif not self._is_allowed(host):
            fault = "which option 'backends' does not name, and whose address is public"
        if fault:
            raise TargetError(
                f"{self._options.address}: the server redirects the load to {target.scheme}://{host}, {fault}. Nothing "
                "was sent there; name the backends in 'backends', such as be1,be2 or *.example.com"
            )

    def _is_allowed(self, host: str) -> bool:
        if self._options.backends:
            return any(fnmatchcase(host, pattern) for pattern in self._options.backends)
        if host in {
            (urlsplit(frontend).hostname or "").lower() for frontend in self._options.frontends
        }:
            return True
        try:
            addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
        except OSError:
            return False
        return bool(addresses) and all(_is_private(str(address)) for address in addresses)

    def _once(
        self,
        method: str,
        url: SplitResult,
        headers: Mapping[str, str],
        body: Callable[[], Iterator[bytes]] | None,
    ) -> tuple[int, str | None, bytes]:
        connection = self._connected(url)
        try:
            connection.response_class = _Response
            connection.putrequest(method, url.path + (f"?{url.query}" if url.query else ""))
            for name, value in {**headers, **self.login.headers}.items():
                connection.putheader(name, value.encode())
            connection.endheaders()
            with self._response(connection, body) as response:
                return response.status, response.getheader("Location"), whole(response, _LONGEST)
        finally:
            connection.close()

    def _response(
        self, connection: http.client.HTTPConnection, body: Callable[[], Iterator[bytes]] | None
    ) -> http.client.HTTPResponse:
        if body is None:
            return connection.getresponse()
        blocks = body

        def send() -> None:
            for block in blocks():
                connection.send(block)
            # The answer comes when the rows are loaded.
            connection.sock.settimeout(self._options.load_timeout + self._options.timeout)

        def made(*values: Any, **named: Any) -> _Response:
            response = _Response(*values, **named)
            response.send_body = send
            return response

        connection.response_class = made  # type: ignore[assignment] # typeshed knows the class alone
        return connection.getresponse()

    def _connected(self, url: SplitResult) -> http.client.HTTPConnection:
        port = url.port or (443 if url.scheme == "https" else 8030)
        return connection_to(
            url.scheme,
            url.hostname or "",
            port,
            timeout=self._options.timeout,
            sslrootcert=self._options.sslrootcert,
        )


def _is_private(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_private


def table_columns(load: Load) -> list[str] | None:
    """The table's columns, if the server says them.

    Raises:
        Busy: no server answers. TargetError: the login is refused, or the table does not exist.
    """
    status, text = load.ask("GET", load.schema_path, {})
    try:
        answer = json.loads(text)
        answer = (
            answer.get("data", answer) if isinstance(answer.get("data", answer), dict) else answer
        )
        properties = answer.get("properties")
    except (ValueError, AttributeError, RecursionError):
        return None
    if isinstance(properties, list):
        return [
            str(column["name"])
            for column in properties
            if isinstance(column, dict) and "name" in column
        ]
    if (
        status >= 400
        or answer.get("exception")
        or str(answer.get("status")).upper() in ("FAILED", "404")
    ):
        message = (
            answer.get("exception")
            or answer.get("msg")
            or answer.get("message")
            or f"HTTP {status}"
        )
        raise TargetError(
            f"{load.load_path.removesuffix('/_stream_load')}: {load.login.shown(str(message))[:300]}; check 'dbtable'"
        )
    return None


def run(options: StreamLoadOptions, statements: Iterable[str]) -> None:
    """
    Raises:
        TargetError: a statement failed; those before it have run.
    """
    try:
        import pymysql
    except ImportError:
        raise MissingPackageError(
            "option 'queryServer' needs pymysql: pip install 'spark-channel[mysql]', on the driver's host",
            name="pymysql",
        ) from None
    assert options.query_server is not None
    host, port = host_and_port(options.query_server, 9030)
    user, password = options.login
    address = f"{host}:{port}/{options.database}"
    try:
        connection = pymysql.connect(
            host=host,
            port=port,
            user=user,
            password=password,
            database=options.database,
            autocommit=True,
            connect_timeout=ceil(options.timeout),
            read_timeout=ceil(options.load_timeout),
            write_timeout=ceil(options.timeout),
        )
    except pymysql.MySQLError as error:
        raise TargetError(
            f"{address}: {error}; check 'queryServer', 'user' and 'password'"
        ) from error
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                try:
                    cursor.execute(statement)
                except pymysql.MySQLError as error:
                    raise TargetError(f"{address}: {statement[:200]}: {error}") from error
    finally:
        connection.close()
