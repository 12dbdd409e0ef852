"""Relays between DataX's drivers and servers that speak another version of their protocol, or a protocol like theirs.

Only `python -m tests.datax.renew` sends through them: spark-channel reaches the servers itself.
"""

import http.client
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import bson
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.servers.seaweedfs import SeaweedServer

__all__ = ["old_driver_relay", "oss_relay"]

_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013


def _take(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _message(link: socket.socket) -> tuple[int, int, bytes]:
    length, number, _, code = struct.unpack("<iiii", _take(link, 16))
    return number, code, _take(link, length - 16)


def _asked(link: socket.socket, command: dict[str, Any]) -> dict[str, Any]:
    data = struct.pack("<iB", 0, 0) + bson.encode(command)
    link.sendall(struct.pack("<iiii", len(data) + 16, 1, 0, _OP_MSG) + data)
    _, _, body = _message(link)
    answer: dict[str, Any] = bson.decode(body[5:])
    return answer


class _OldDriver(socketserver.BaseRequestHandler):
    """Commands of MongoDB's protocol of 2015, sent on as messages of today's."""

    def handle(self) -> None:
        port = self.server.behind  # type: ignore[attr-defined]
        try:
            with socket.create_connection(("127.0.0.1", port)) as behind:
                while True:
                    number, code, body = _message(self.request)
                    assert code == _OP_QUERY, code
                    end = body.index(b"\0", 4)
                    database = body[4:end].decode().partition(".")[0]
                    command = bson.decode(body[end + 9 :])
                    command = {**command.get("$query", command), "$db": database}
                    answer = _asked(behind, command)
                    if "maxWireVersion" in answer:
                        answer |= {"minWireVersion": 0, "maxWireVersion": 4}
                    data = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(answer)
                    head = struct.pack("<iiii", len(data) + 16, 0, number, _OP_REPLY)
                    self.request.sendall(head + data)
        except OSError:
            return


class _Threads(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextmanager
def _serving(server: Any) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def old_driver_relay(port: int) -> Iterator[int]:
    """The port at which DataX's driver of MongoDB reaches the server at `port`."""
    server = _Threads(("127.0.0.1", 0), _OldDriver)
    server.behind = port  # type: ignore[attr-defined]
    with _serving(server) as listening:
        yield listening


class _Oss(BaseHTTPRequestHandler):
    """OSS's operations on objects are those of S3; their signatures differ."""

    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        behind: SeaweedServer = self.server.behind  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        asked = urlencode(parse_qsl(query, keep_blank_values=True), quote_via=quote, safe="")
        path += f"?{asked}" if asked else ""
        url = f"http://127.0.0.1:{behind.port}{path}"
        kept = {"Range": self.headers["Range"]} if self.headers["Range"] else {}
        request = AWSRequest(self.command, url, kept, body)
        login = behind.environment
        credentials = Credentials(login["AWS_ACCESS_KEY_ID"], login["AWS_SECRET_ACCESS_KEY"])
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
        link = http.client.HTTPConnection("127.0.0.1", behind.port)
        link.request(self.command, path, body, dict(request.headers))
        answer = link.getresponse()
        # OSS answers with times to the millisecond, without a namespace, and with one word for who may read.
        data = answer.read().replace(b"Z</LastModified>", b".000Z</LastModified>")
        data = data.replace(b' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', b"")
        data = re.sub(rb"<Grant>.*</Grant>", b"<Grant>private</Grant>", data)
        self.send_response(answer.status)
        for name in ("Content-Type", "ETag", "Last-Modified", "Content-Range"):
            if answer.getheader(name):
                self.send_header(name, str(answer.getheader(name)))
        size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", size or "0")
        self.send_header("x-oss-request-id", "1")
        self.end_headers()
        self.wfile.write(data)
        link.close()

    do_GET = _pass_on  # noqa: N815 - the library's name
    do_PUT = _pass_on  # noqa: N815 - the library's name
    do_POST = _pass_on  # noqa: N815 - the library's name
    do_DELETE = _pass_on  # noqa: N815 - the library's name
    do_HEAD = _pass_on  # noqa: N815 - the library's name

    def log_message(self, *_: Any) -> None:
        """Nothing is written."""


@contextmanager
def oss_relay(store: SeaweedServer) -> Iterator[int]:
    """The port at which DataX's driver of OSS reaches a store of S3."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Oss)
    server.behind = store  # type: ignore[attr-defined]
    with _serving(server) as listening:
        yield listening
