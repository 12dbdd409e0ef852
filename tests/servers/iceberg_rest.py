"""An Iceberg REST catalog of the tests' own: the protocol over real HTTP, in front of pyiceberg's SQL catalog.

It has what tables need: configuration, namespaces, load, staged creation and commits with their requirements. Every
request has to bear the token. `lose` has so many answers to commits be lost, after they were carried out, and their
clients get `lost`. `refuse` has the statuses that the next commits get, which are not carried out. `config` has
the settings that clients take over, and `table_config` the same for each table. `vend` makes the credentials of a
table's files, for each answer with a table. `meanwhile` has works that are done just before a commit is.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

__all__ = ["TOKEN", "RestCatalogServer", "serve"]

TOKEN = "s3cret-of-the-catalog"
_STATUS = {
    CommitFailedException: 409,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
}


@dataclass
class RestCatalogServer:
    uri: str
    requests: list[str]
    lose: int = 0
    lost: int = 504
    refuse: list[int] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    table_config: dict[str, Any] = field(default_factory=dict)
    vend: Callable[[], dict[str, Any]] = dict
    meanwhile: list[Callable[[], None]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def described(self) -> dict[str, Any]:
        """Return the fields of a table's answer other than its metadata."""
        vended = self.vend()
        return {**vended, "config": {**self.table_config, **vended.get("config", {})}}


@dataclass
class _Named:
    """What `commit_table` asks of a table."""

    identifier: tuple[str, ...]

    def name(self) -> tuple[str, ...]:
        return self.identifier


def _answer(
    found: RestCatalogServer, catalog: Catalog, method: str, parts: list[str], body: bytes
) -> str:
    match (method, parts):
        case ("GET", ["config"]):
            return json.dumps({"defaults": {}, "overrides": {}, **found.config})
        case ("POST", ["namespaces"]):
            catalog.create_namespace(tuple(json.loads(body)["namespace"]))
            return body.decode()
        case ("GET", ["namespaces", space, "tables", name]):
            table = catalog.load_table((space, name))
            place = {"metadata-location": table.metadata_location, **found.described()}
            return TableResponse(metadata=table.metadata, **place).model_dump_json(by_alias=True)
        case ("POST", ["namespaces", space, "tables"]):
            asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
            if not asked.stage_create:
                raise NotImplementedError("tables are created by a staged creation")
            made = catalog.create_table_transaction(
                (space, asked.name), asked.table_schema, asked.location, properties=asked.properties
            )
            # A creation that is staged has its metadata file nowhere: the credentials are for its location.
            place = {
                "metadata-location": f"{made.table_metadata.location}/metadata/staged",
                **found.described(),
            }
            return TableResponse(metadata=made.table_metadata, **place).model_dump_json(
                by_alias=True
            )
        case ("POST", ["namespaces", space, "tables", name]):
            change = CommitTableRequest.model_validate_json(body)
            named: Any = _Named((space, name))
            return catalog.commit_table(named, change.requirements, change.updates).model_dump_json(
                by_alias=True
            )
    raise NotImplementedError(f"{method} {parts}")


@contextmanager
def serve(catalog: Catalog) -> Iterator[RestCatalogServer]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")][1:]
            found.requests.append(f"{self.command} {'/'.join(parts)}")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._send(401, _error("no token", 401))
            is_commit = self.command == "POST" and len(parts) == 4
            if is_commit and found.meanwhile:
                found.meanwhile.pop(0)()
            if is_commit and found.refuse:
                status = found.refuse.pop(0)
                return self._send(status, _error("refused", status))
            try:
                text = _answer(found, catalog, self.command, parts, body)
            except tuple(_STATUS) as error:
                status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
                return self._send(status, _error(str(error), status))
            if is_commit and found.lose:
                found.lose -= 1
                return self._send(found.lost, _error("the answer is lost", found.lost))
            return self._send(200, text)

        do_GET = _handle  # noqa: N815 - the names that the base class calls
        do_POST = _handle  # noqa: N815 - http.server's name

        def _send(self, status: int, text: str) -> None:
            data = text.encode()
            found.statuses.append(status)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = RestCatalogServer(f"http://127.0.0.1:{server.server_port}", [])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _error(message: str, status: int) -> str:
    return json.dumps({"error": {"message": message, "type": "Error", "code": status}})
