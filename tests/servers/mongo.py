"""A server that speaks MongoDB's wire protocol for the commands that a driver and the connector send.

Not MongoDB: documents lie in a dict, conditions are a few operators. It has what FerretDB does not: bounds of an index,
views, decimals, validators, lost connections and forgotten cursors. All else is tested with FerretDB.
"""

import itertools
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import bson
from bson import Decimal128, ObjectId
from bson.codec_options import CodecOptions

_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_AWARE: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
Document = dict[str, Any]


def order(value: Any) -> tuple[Any, ...]:
    """BSON's order over all types."""
    if value is None:
        return (5, 0)
    if isinstance(value, bool):
        return (40, value)
    if isinstance(value, (int, float)):
        return (10, value)
    if isinstance(value, Decimal128):
        return (10, value.to_decimal())
    if isinstance(value, str):
        return (15, value.encode())
    if isinstance(value, dict):
        return (20, tuple((order(each), name) for name, each in value.items()))
    if isinstance(value, bytes):
        return (30, value)
    if isinstance(value, ObjectId):
        return (35, value.binary)
    return (45, value) if isinstance(value, datetime) else (50, str(value))


def at(document: Document, name: str) -> Any:
    inside: Any = document
    for part in name.split("."):
        inside = inside.get(part) if isinstance(inside, dict) else None
    return inside


def matches(document: Document, condition: Document) -> bool:
    """Conditions compare values of one type with each other alone, as MongoDB's do."""
    for name, wanted in condition.items():
        value = at(document, name)
        tests = (
            wanted
            if isinstance(wanted, dict) and any(key.startswith("$") for key in wanted)
            else {"$eq": wanted}
        )
        for operator, bound in tests.items():
            one, other = order(value), order(bound) if operator != "$in" else ()
            comparable = one[:1] == other[:1]
            passed = {
                "$eq": one == other,
                "$ne": one != other,
                "$gt": comparable and one > other,
                "$gte": comparable and one >= other,
                "$lt": comparable and one < other,
                "$lte": comparable and one <= other,
                "$in": operator == "$in" and any(one == order(each) for each in bound),
            }[operator]
            if not passed:
                return False
    return True


class MongoServer(socketserver.ThreadingTCPServer):
    """`refuses` gives a reason for a document that it does not take; `breaks` are what the next commands meet."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.collections: dict[str, dict[str, Document]] = {}
        self.views: set[str] = set()
        self.commands: list[Document] = []
        self.refuses: Callable[[Document], str] = lambda document: ""
        self.breaks: list[tuple[str, str]] = []
        self.open_cursors: dict[int, list[Document]] = {}
        self.most_bytes = 16 << 20
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.server_address[1]}/shop"

    def put(self, name: str, documents: list[Document]) -> None:
        held = self.collections.setdefault(name, {})
        for document in documents:
            document.setdefault("_id", ObjectId())
            held[repr(order(document["_id"]))] = document

    def documents(self, name: str) -> list[Document]:
        return sorted(self.collections.get(name, {}).values(), key=lambda each: order(each["_id"]))

    def broken(self, command: str) -> str:
        """How the next command of this name fails; "" = not at all."""
        for number, (name, how) in enumerate(self.breaks):
            if name == command:
                del self.breaks[number]
                return how
        return ""

    def answer(self, command: Document) -> Document | None:
        """None: the connection is lost instead."""
        with self._lock:
            name = next(iter(command))
            self.commands.append(command)
            how = self.broken(name)
            if how == "lost":
                return None
            if how == "forgotten":
                self.open_cursors.clear()
            made = getattr(self, f"do_{name.lower()}", None)
            if made is None:
                return {"ok": 0.0, "code": 59, "errmsg": f"no such command: {name!r}"}
            return {"ok": 1.0, **made(command)}

    def do_hello(self, command: Document) -> Document:
        return {
            "helloOk": True,
            "ismaster": True,
            "isWritablePrimary": True,
            "maxBsonObjectSize": 16 << 20,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
            "minWireVersion": 0,
            "maxWireVersion": 21,
            "readOnly": False,
            "logicalSessionTimeoutMinutes": 30,
        }

    do_ismaster = do_hello

    def do_ping(self, command: Document) -> Document:
        return {}

    do_endsessions = do_ping

    def do_killcursors(self, command: Document) -> Document:
        for each in command["cursors"]:
            self.open_cursors.pop(each, None)
        return {"cursorsKilled": command["cursors"]}

    def do_listcollections(self, command: Document) -> Document:
        wanted = command.get("filter", {}).get("name")
        found = [
            {"name": name, "type": "view" if name in self.views else "collection"}
            for name in self.collections
            if wanted in (None, name)
        ]
        return {"cursor": {"id": 0, "ns": "shop.$cmd.listCollections", "firstBatch": found}}

    def do_collstats(self, command: Document) -> Document:
        found = self.collections.get(command["collStats"], {})
        size = sum(len(bson.encode(each)) for each in found.values())
        return {"count": len(found), "size": size, "avgObjSize": size // max(1, len(found))}

    def do_count(self, command: Document) -> Document:
        return {"n": len(self.collections.get(command["count"], {}))}

    def do_aggregate(self, command: Document) -> Document:
        found = self.documents(command["aggregate"])
        for stage in command["pipeline"]:
            if "$sample" in stage:
                step = max(1, len(found) // stage["$sample"]["size"])
                found = found[::step][: stage["$sample"]["size"]]
            elif "$project" in stage:
                found = [{"_id": each["_id"]} for each in found]
            elif "$sort" in stage:
                found = sorted(found, key=lambda each: order(each["_id"]))
        return self._cursor(command["aggregate"], found, 1_000_000)

    def do_find(self, command: Document) -> Document:
        name = command["find"]
        if name in self.views and (command.get("hint") or command.get("min")):
            raise ValueError("hint provided does not correspond to an existing index")
        found = self.documents(name)
        if command.get("min"):
            found = [each for each in found if order(each["_id"]) >= order(command["min"]["_id"])]
        if command.get("max"):
            found = [each for each in found if order(each["_id"]) < order(command["max"]["_id"])]
        found = [each for each in found if matches(each, command.get("filter", {}))]
        if command.get("limit"):
            found = found[: abs(command["limit"])]
        fields = command.get("projection")
        if fields:
            found = [
                {name: value for name, value in each.items() if name in fields} for each in found
            ]
        return self._cursor(
            name, found, 1_000_000 if command.get("singleBatch") else command.get("batchSize", 101)
        )

    def _cursor(self, name: str, found: list[Document], size: int) -> Document:
        number, size = 0, self._fitting(found, size)
        if len(found) > size:
            number = next(self._numbers)
            self.open_cursors[number] = found[size:]
        return {
            "cursor": {"id": bson.Int64(number), "ns": f"shop.{name}", "firstBatch": found[:size]}
        }

    def _fitting(self, found: list[Document], most: int) -> int:
        """How many documents an answer has: never more than 16 MiB, but at least one."""
        size = 0
        for number, document in enumerate(found[:most]):
            size += len(bson.encode(document))
            if size > self.most_bytes and number:
                return number
        return most

    def do_getmore(self, command: Document) -> Document:
        number, size = command["getMore"], command.get("batchSize", 101)
        left = self.open_cursors.get(number)
        if left is None:
            return {"ok": 0.0, "code": 43, "errmsg": f"cursor id {number} not found"}
        size = self._fitting(left, size)
        self.open_cursors[number] = left[size:]
        if not left[size:]:
            del self.open_cursors[number]
        ended = 0 if number not in self.open_cursors else number
        return {
            "cursor": {
                "id": bson.Int64(ended),
                "ns": f"shop.{command['collection']}",
                "nextBatch": left[:size],
            }
        }

    def do_insert(self, command: Document) -> Document:
        errors, held = [], self.collections.setdefault(command["insert"], {})
        for number, document in enumerate(command["documents"]):
            key = repr(order(document["_id"]))
            if key in held:
                errors.append(
                    {"index": number, "code": 11000, "errmsg": "E11000 duplicate key error"}
                )
            elif reason := self.refuses(document):
                errors.append({"index": number, "code": 121, "errmsg": reason})
            else:
                held[key] = document
        made: Document = {"n": len(command["documents"]) - len(errors)}
        return made | ({"writeErrors": errors} if errors else {})


class _Connection(socketserver.BaseRequestHandler):
    server: MongoServer

    def handle(self) -> None:
        try:
            while True:
                length, number, _, code = struct.unpack("<iiii", self._take(16))
                body = self._take(length - 16)
                command = _query(body) if code == _OP_QUERY else _message(body)
                answer = self.server.answer(command)
                if answer is None:
                    return
                data = bson.encode(answer)
                if code == _OP_QUERY:
                    data, kind = struct.pack("<iqii", 8, 0, 0, 1) + data, _OP_REPLY
                else:
                    data, kind = struct.pack("<iB", 0, 0) + data, _OP_MSG
                self.request.sendall(struct.pack("<iiii", len(data) + 16, 0, number, kind) + data)
        except OSError:
            return

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.request.recv(count - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data


def _query(body: bytes) -> Document:
    start = body.index(b"\0", 4) + 1 + 8
    return bson.decode(body[start:], _AWARE)


def _message(body: bytes) -> Document:
    place, made = 4, {}
    more: Document = {}
    while place < len(body):
        kind = body[place]
        place += 1
        (size,) = struct.unpack_from("<i", body, place)
        if kind == 0:
            made = bson.decode(body[place : place + size], _AWARE)
        else:
            end = body.index(b"\0", place + 4)
            name = body[place + 4 : end].decode()
            more[name] = bson.decode_all(body[end + 1 : place + size], _AWARE)
        place += size
    return {**made, **more}


@contextmanager
def mongo_server() -> Iterator[MongoServer]:
    with MongoServer() as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
