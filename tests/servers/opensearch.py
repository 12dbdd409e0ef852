"""OpenSearch and Elasticsearch for the tests: one node in its own process and directory, removed when it is closed.

`Relay` is a proxy between clients and the node, for the faults that a node cannot be made to produce.
"""

import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from tests.servers.installed import EVERY, installed
from tests.servers.ports import free_port

__all__ = ["PRODUCTS", "OpenSearchServer", "Relay", "opensearch_server"]


@dataclass(frozen=True)
class Product:
    """`name` is the folder of the jars, and the beginning of packages; `prefix` that of system properties.

    `main` and the classes of the modules that a node needs to speak HTTP, and to delete by query, follow `org.NAME.`.
    """

    name: str
    prefix: str
    main: str
    reindex: str

    @property
    def modules(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Each module's class, and how the names of its jars begin."""
        return {
            "transport-netty4": (
                f"org.{self.name}.transport.Netty4Plugin",
                ("netty-", "transport-netty4"),
            ),
            "reindex": (f"org.{self.name}.{self.reindex}.ReindexPlugin", ("reindex-",)),
        }


PRODUCTS = {
    "opensearch": Product("opensearch", "opensearch", "OpenSearch", "index.reindex"),
    "elasticsearch": Product("elasticsearch", "es", "Elasticsearch", "reindex"),
}
_START_SECONDS = 120.0
_LOG = """
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%p][%c{1}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


@dataclass
class OpenSearchServer:
    """A node that clients reach at `url`, which leads through `relay`."""

    port: int
    relay: "Relay"

    @property
    def url(self) -> str:
        return self.relay.url

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The node's own answer, past the relay."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            link.request(method, path, data, {"Content-Type": kind} if data else {})
            answer = link.getresponse()
            found = json.loads(answer.read() or b"{}")
            assert answer.status < 400, found
            return found
        finally:
            link.close()

    def put(self, index: str, documents: dict[str, Any]) -> None:
        """Write documents by id, in an index that is made for them if there is none."""
        lines: list[Any] = []
        for key, document in documents.items():
            lines += [{"index": {"_id": key}}, document]
        body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        answer = self.ask("POST", f"/{index}/_bulk?refresh=true", body)
        assert not answer["errors"], answer

    def documents(self, index: str) -> dict[str, Any]:
        """The documents of an index, by id; at most 10 000."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("POST", f"/{index}/_search", {"size": 10_000})
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}

    def clear(self) -> None:
        """Remove all indexes, and reset the relay."""
        self.relay.reset()
        self.ask("DELETE", "/_all")

    def scrolls(self) -> int:
        """How many scrolls are open."""
        found = self.ask("GET", "/_nodes/stats/indices/search")
        return sum(
            int(node["indices"]["search"]["open_contexts"]) for node in found["nodes"].values()
        )


@contextmanager
def opensearch_server(name: str = "opensearch") -> Iterator[OpenSearchServer]:
    by = EVERY if name == "elasticsearch" else ".ci/servers"
    product, jars = PRODUCTS[name], installed(name, f"org.{name}:{name} of Maven", by=by)
    home, port = Path(tempfile.mkdtemp(prefix=f"{name}-")), free_port()
    _install(product, sorted(jars.glob("*.jar")), home, port)
    java = shutil.which("java")
    assert java is not None, "no java is installed; run .ci/servers"
    options = ["-Xmx512m", "-Xms512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    settings = {
        "java.security.manager": "allow",
        "java.io.tmpdir": home / "tmp",
        "log4j2.disable.jmx": "true",
        f"{product.prefix}.path.home": home,
        f"{product.prefix}.path.conf": home / "config",
        f"{product.prefix}.distribution.type": "tar",
    }
    options += [f"-D{name}={value}" for name, value in settings.items()]
    # It does not run as root.
    owner: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    log = home / "logs" / "out"
    with log.open("wb") as out, relay(port) as between:
        process = subprocess.Popen(
            [java, *options, "-cp", f"{home}/lib/*", f"org.{name}.bootstrap.{product.main}"],
            cwd=home,
            env={**os.environ, "LIBFFI_TMPDIR": str(home / "tmp")},
            stdout=out,
            stderr=out,
            **owner,
        )
        server = OpenSearchServer(port, between)
        try:
            _wait(server, process, log)
            yield server
        finally:
            process.kill()
            process.wait(10)
            shutil.rmtree(home, ignore_errors=True)


def _wait(server: OpenSearchServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            server.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=30s")
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text(errors="replace")
                raise RuntimeError(f"the node does not start: {text[-2000:]}") from None
            time.sleep(0.1)


def _install(product: Product, jars: list[Path], home: Path, port: int) -> None:
    """The folders of a distribution."""
    core = f"{product.name}-core-"
    version = next(each.stem for each in jars if each.stem.startswith(core)).removeprefix(core)
    for name in ("config", "data", "lib", "logs", "plugins", "tmp"):
        (home / name).mkdir()
    (home / "config" / "log4j2.properties").write_text(_LOG)
    (home / "config" / f"{product.name}.yml").write_text(
        f"discovery.type: single-node\nnetwork.host: 127.0.0.1\nhttp.port: {port}\n"
        f"transport.port: {free_port()}\naction.destructive_requires_name: false\n"
        "cluster.routing.allocation.disk.threshold_enabled: false\n"
    )
    used = set[Path]()
    for name, (kind, prefixes) in product.modules.items():
        folder = home / "modules" / name
        folder.mkdir(parents=True)
        about = {
            "name": name,
            "description": name,
            "classname": kind,
            "version": version,
            f"{product.name}.version": version,
            "java.version": 11,
            "has.native.controller": "false",
        }
        lines = "".join(f"{key}={value}\n" for key, value in about.items())
        (folder / "plugin-descriptor.properties").write_text(lines)
        (folder / "plugin-security.policy").write_text(
            'grant { permission java.net.SocketPermission "*", "accept,connect"; '
            'permission java.io.FilePermission "/proc/sys/net/core/somaxconn", "read"; '
            'permission java.util.PropertyPermission "sun.nio.ch.bugLevel", "write"; };\n'
        )
        for jar in (each for each in jars if each.name.startswith(prefixes)):
            shutil.copy(jar, folder)
            used.add(jar)
    for jar in set(jars) - used:
        shutil.copy(jar, home / "lib")
    if os.geteuid() == 0:
        for path in (home, *home.rglob("*")):
            shutil.chown(path, "nobody")


class Relay(ThreadingHTTPServer):
    """Passes requests on, but for those that are to fail.

    `breaks` are (status, text) for the next requests whose path contains the text: an answer with that status in place
    of the node's, which does not see the request; with 0, the node's answer is lost with the connection. `crowded`: how
    many documents of bulk requests are refused as too many. `login`: the required header Authorization.
    """

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.reset()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reset(self) -> None:
        self.breaks: list[tuple[str, int]] = []
        self.crowded = 0
        self.login = ""

    def broken(self, path: str) -> int | None:
        for number, (part, status) in enumerate(self.breaks):
            if part in path:
                del self.breaks[number]
                return status
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        relay = cast("Relay", self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = relay.broken(self.path)
        if relay.login and self.headers.get("Authorization") != relay.login:
            self._say(401, _error("security_exception", "unable to authenticate user"))
        elif status:
            self._say(status, _error("broken", "it is broken"))
        else:
            refused = 0
            if self.path.endswith("/_bulk") and relay.crowded:
                lines = body.splitlines(keepends=True)
                refused = min(relay.crowded, len(lines) // 2)
                relay.crowded -= refused
                body = b"".join(lines[2 * refused :])
            found = self._passed_on(body) if body or not refused else (200, b'{"items":[]}')
            if status == 0:
                self.close_connection = True
                return
            self._say(found[0], _with_refused(found[1], refused))

    def _passed_on(self, body: bytes) -> tuple[int, bytes]:
        link = http.client.HTTPConnection(
            "127.0.0.1", cast("Relay", self.server).target, timeout=60
        )
        try:
            kind = {"Content-Type": self.headers["Content-Type"]} if body else {}
            link.request(self.command, self.path, body or None, kind)
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()

    def _say(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):  # the client has left
            self.wfile.write(b"" if self.command == "HEAD" else data)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer  # noqa: N815 - as the library asks

    def log_message(self, *_: Any) -> None:
        pass


def _error(kind: str, reason: str) -> bytes:
    return json.dumps({"error": {"type": kind, "reason": reason}}).encode()


def _with_refused(answer: bytes, count: int) -> bytes:
    if not count:
        return answer
    full = {"type": "es_rejected_execution_exception", "reason": "full"}
    refused = [{"index": {"status": 429, "error": full}}] * count
    return json.dumps({"errors": True, "items": [*refused, *json.loads(answer)["items"]]}).encode()


@contextmanager
def relay(target: int) -> Iterator[Relay]:
    with Relay(target) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
