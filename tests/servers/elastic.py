"""A server that answers the requests to Elasticsearch that the connector sends. Of queries it knows `term`."""

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class ElasticServer(ThreadingHTTPServer):
    """`answers` are (status, body) for the next requests whose path contains a text."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.indexes: dict[str, dict[str, Any]] = {}
        self.made: dict[str, Any] = {}
        self.scrolls: dict[str, list[Any]] = {}
        self.breaks: list[tuple[str, int]] = []
        self.crowded = 0
        self.keeps_source = True
        self.login = ""
        self._lock = threading.Lock()
        self._number = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def number(self) -> str:
        self._number += 1
        return f"n{self._number}"

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, Any]:
        with self._lock:
            for number, (part, status) in enumerate(self.breaks):
                if part in path:
                    del self.breaks[number]
                    return status, {"error": {"type": "broken", "reason": "it is broken"}}
            if path == "/_search/scroll":
                return self._scroll(method, json.loads(body))
            index, _, action = path.strip("/").partition("/")
            if action == "_bulk":
                return 200, self._bulk(index, body)
            if method == "PUT" and not action:
                self.made[index], self.indexes[index] = json.loads(body), {}
                return 200, {}
            if index not in self.indexes:
                return 404, {
                    "error": {
                        "type": "index_not_found_exception",
                        "reason": f"no such index [{index}]",
                    }
                }
            if action == "_refresh":
                return 200, {}
            asked = json.loads(body or b"{}")
            found = [
                {"_index": index, "_id": key, "_source": each}
                for key, each in self.indexes[index].items()
                if _matches(each, asked.get("query", {}))
            ]
            if not self.keeps_source:
                found = [{"_index": index, "_id": each["_id"]} for each in found]
            if action == "_count":
                return 200, {"count": len(found)}
            if action == "_delete_by_query":
                self.indexes[index].clear()
                return 200, {"deleted": len(found)}
            if "slice" in asked:
                one, of = asked["slice"]["id"], asked["slice"]["max"]
                found = [each for each in found if zlib.crc32(each["_id"].encode()) % of == one]
            size = asked["size"]
            made: dict[str, Any] = {"_shards": {"failed": 0}, "hits": {"hits": found[:size]}}
            if "scroll" in query:
                made["_scroll_id"] = key = self.number()
                self.scrolls[key] = [found[size:], size]
            return 200, made

    def _scroll(self, method: str, asked: Any) -> tuple[int, Any]:
        if method == "DELETE":
            for key in asked["scroll_id"]:
                self.scrolls.pop(key, None)
            return 200, {}
        held = self.scrolls.get(asked["scroll_id"])
        if held is None:
            return 404, {
                "error": {
                    "type": "search_context_missing_exception",
                    "reason": "No search context found",
                }
            }
        found, size = held
        held[0] = found[size:]
        return 200, {
            "_scroll_id": asked["scroll_id"],
            "_shards": {"failed": 0},
            "hits": {"hits": found[:size]},
        }

    def _bulk(self, index: str, body: bytes) -> Any:
        held, items = self.indexes.setdefault(index, {}), []
        lines = [json.loads(line) for line in body.splitlines()]
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            ((word, about),) = action.items()
            key = about.get("_id") or self.number()
            status = 201
            error: Any = None
            if self.crowded:
                self.crowded -= 1
                status, error = 429, {"type": "es_rejected_execution_exception", "reason": "full"}
            elif word == "create" and key in held:
                status, error = (
                    409,
                    {
                        "type": "version_conflict_engine_exception",
                        "reason": "document already exists",
                    },
                )
            elif any(value == "unfit" for value in document.values()):
                cause = {"type": "number_format_exception", "reason": 'For input string: "unfit"'}
                status, error = (
                    400,
                    {
                        "type": "mapper_parsing_exception",
                        "reason": "failed to parse",
                        "caused_by": cause,
                    },
                )
            elif word == "update":
                held[key] = {**held.get(key, {}), **document["doc"]}
            else:
                held[key] = document
            items.append(
                {word: {"_id": key, "status": status, **({"error": error} if error else {})}}
            )
        return {"errors": True, "items": items}


def _matches(document: Any, query: Any) -> bool:
    terms = query.get("term", {})
    return all(document.get(name) == value for name, value in terms.items())


class _Handler(BaseHTTPRequestHandler):
    server: ElasticServer
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        if self.server.login and self.headers.get("Authorization") != self.server.login:
            status, found = (
                401,
                {"error": {"type": "security_exception", "reason": "unable to authenticate user"}},
            )
        else:
            status, found = self.server.answer(
                self.command, parts.path, parse_qs(parts.query), body
            )
        if status == 0:
            self.close_connection = True
            return
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - as the library asks

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def elastic_server() -> Iterator[ElasticServer]:
    with ElasticServer() as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
