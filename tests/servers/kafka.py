"""A Kafka broker for the tests: one broker in threads, which speaks the wire protocol to librdkafka.

It keeps what clients send as the batches that they are, with transactions and their markers, aborted ones, compaction
and retention. It has none of a broker's disks, replicas, groups or rights.
"""

import socket
import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Broker", "broker"]

_VERSIONS = {
    0: (3, 3),
    1: (4, 4),
    2: (1, 2),
    3: (0, 4),
    9: (1, 1),
    10: (0, 1),
    17: (0, 1),
    18: (0, 0),
    19: (0, 2),
    22: (0, 1),
    24: (0, 0),
    25: (0, 0),
    26: (0, 1),
    28: (0, 0),
    36: (0, 0),
}
_HEADER = struct.Struct(">qiibIhiqqqhii")
_OUT_OF_RANGE, _UNKNOWN_TOPIC, _TOO_LARGE, _FENCED, _EXISTS, _NO_GROUP = 1, 3, 10, 47, 36, 30


@dataclass
class Batch:
    base: int
    last: int
    data: bytes
    time: int
    producer: int
    transactional: bool
    control: bool = False


@dataclass
class Partition:
    low: int = 0
    high: int = 0
    log: list[Batch] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)
    """The first offsets of open transactions, by producer."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    stored: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """The offsets of batches, by producer, its epoch and the sequence: a batch that is sent again is stored once."""

    @property
    def stable(self) -> int:
        return min(self.opened.values(), default=self.high)

    def append(self, data: bytes, *, control: bool = False) -> int:
        head = list(_HEADER.unpack_from(data))
        attributes, last, _, latest, producer, epoch, sequence = head[5:12]
        if not control and producer >= 0 and sequence >= 0:
            if (producer, epoch, sequence) in self.stored:
                return self.stored[producer, epoch, sequence]
            self.stored[producer, epoch, sequence] = self.high
        base = self.high
        transactional = bool(attributes & 0x10)
        if transactional and not control:
            self.opened.setdefault(producer, base)
        data = struct.pack(">q", base) + data[8:]
        self.log.append(Batch(base, base + last, data, latest, producer, transactional, control))
        self.high = base + last + 1
        return base

    def end(self, producer: int, *, commit: bool) -> None:
        first = self.opened.pop(producer, None)
        if first is None:
            return
        if not commit:
            self.aborted.append((producer, first, self.high))
        self.append(_marker(producer, commit=commit), control=True)


def _marker(producer: int, *, commit: bool) -> bytes:
    record = (
        b"\0\0\0"
        + _varint(4)
        + struct.pack(">hh", 0, int(commit))
        + _varint(6)
        + struct.pack(">hi", 0, 0)
        + b"\0"
    )
    record = _varint(len(record)) + record
    now = int(time.time() * 1000)
    head = _HEADER.pack(
        0, _HEADER.size - 12 + len(record), 0, 2, 0, 0x30, 0, now, now, producer, 0, -1, 1
    )
    return head + record


def _varint(number: int) -> bytes:
    number <<= 1
    assert number < 0x80
    return bytes((number,))


class Broker:
    """`login`: what SASL PLAIN takes. `lose`: how many answers to writes are lost with their connections.

    `no_groups`: no client may use a consumer group. `largest`: bytes of a batch that are not refused. `asked`: the
    isolation levels of fetches and of asked offsets.
    """

    def __init__(self) -> None:
        self.topics: dict[str, list[Partition]] = {}
        self.login: tuple[str, str] | None = None
        self.lose = 0
        self.largest = 1 << 20
        self.mute = False
        self.no_groups = False
        self.asked: set[int] = set()
        self.writes = 0
        self.port = 0
        self.changed = threading.Condition()
        self._producers = 100
        self._transactions: dict[str, tuple[int, int]] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str]] = {}
        """The offsets that groups have committed, by group, topic and partition."""
        self._pending: dict[int, dict[tuple[str, str, int], tuple[int, str]]] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def create(self, topic: str, partitions: int = 1) -> list[Partition]:
        with self.changed:
            self.topics[topic] = [Partition() for _ in range(partitions)]
            return self.topics[topic]

    def compact(self, topic: str, partition: int, *offsets: int) -> None:
        """Remove the batches that begin at `offsets`."""
        with self.changed:
            part = self.topics[topic][partition]
            part.log = [each for each in part.log if each.base not in offsets]

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Retention."""
        with self.changed:
            part = self.topics[topic][partition]
            part.low = before
            part.log = [each for each in part.log if each.last >= before]

    def answer(self, key: int, version: int, read: "_Reader") -> bytes | None:
        """The body of an answer; None ends the connection."""
        made = _Writer()
        with self.changed:
            ended = getattr(self, f"_{_NAMES[key]}")(read, made, version)
        return None if ended else made.data

    def _produce(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        read.string(), read.number("h"), read.number("i")
        self.writes += 1
        made.add("i", topics := read.number("i"))
        for _topic in range(topics):
            name = read.string() or ""
            made.string(name).add("i", parts := read.number("i"))
            for _part in range(parts):
                number, data = read.number("i"), read.data_of()
                known = self._part(name, number)
                error, base = _UNKNOWN_TOPIC if known is None else 0, -1
                if len(data) > self.largest:
                    error = _TOO_LARGE
                elif known is not None:
                    base = known.append(data)
                made.add("ihqq", number, error, base, -1)
        made.add("i", 0)
        self.changed.notify_all()
        if self.lose:
            self.lose -= 1
            return True
        return False

    def _fetch(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        read.number("i")
        wait, _least, _most = read.number("i"), read.number("i"), read.number("i")
        committed = read.number("b")
        self.asked.add(committed)
        wanted = []
        for _topic in range(read.number("i")):
            name, parts = read.string() or "", read.number("i")
            wanted.append(
                (
                    name,
                    [(read.number("i"), read.number("q"), read.number("i")) for _ in range(parts)],
                )
            )
        found = self._found(wanted, committed)
        if self.mute or not any(
            data or error for _, parts in found for _, error, _, data, _ in parts
        ):
            self.changed.wait(wait / 1000)
            found = self._found(wanted, committed)
        made.add("ii", 0, len(found))
        for name, parts in found:
            made.string(name).add("i", len(parts))
            for number, error, known, data, aborted in parts:
                made.add("ihqqi", number, error, known.high, known.stable, len(aborted))
                for producer, first, _ in aborted:
                    made.add("qq", producer, first)
                made.piece(b"" if self.mute else data)
        return False

    def _found(self, wanted: list[Any], committed: int) -> list[Any]:
        return [
            (name, [self._piece(name, committed, *part) for part in parts])
            for name, parts in wanted
        ]

    def _piece(self, name: str, committed: int, number: int, offset: int, most: int) -> Any:
        known = self._part(name, number)
        if known is None:
            return number, _UNKNOWN_TOPIC, Partition(), b"", []
        if not known.low <= offset <= known.high:
            return number, _OUT_OF_RANGE, known, b"", []
        data = b""
        end = known.stable if committed else known.high
        for batch in known.log:
            if offset <= batch.last < end:
                if data and len(data) + len(batch.data) > most:
                    break
                data += batch.data
        aborted = [each for each in known.aborted if each[2] >= offset] if committed else []
        return number, 0, known, data, aborted

    def _list_offsets(self, read: "_Reader", made: "_Writer", version: int) -> bool:
        read.number("i")
        committed = read.number("b") if version > 1 else 0
        self.asked.add(committed)
        if version > 1:
            made.add("i", 0)
        made.add("i", topics := read.number("i"))
        for _topic in range(topics):
            name = read.string() or ""
            made.string(name).add("i", parts := read.number("i"))
            for _part in range(parts):
                number, moment = read.number("i"), read.number("q")
                known = self._part(name, number)
                if known is None:
                    made.add("ihqq", number, _UNKNOWN_TOPIC, -1, -1)
                elif moment == -2:
                    made.add("ihqq", number, 0, -1, known.low)
                elif moment == -1:
                    made.add("ihqq", number, 0, -1, known.stable if committed else known.high)
                else:
                    later = next((each for each in known.log if each.time >= moment), None)
                    made.add(
                        "ihqq", number, 0, later.time if later else -1, later.base if later else -1
                    )
        return False

    def _metadata(self, read: "_Reader", made: "_Writer", version: int) -> bool:
        assert version == 4
        count = read.number("i")
        names = list(self.topics) if count < 0 else [read.string() or "" for _ in range(count)]
        made.add("ii", 0, 1).add("i", 1).string("127.0.0.1").add("i", self.port).string(None)
        made.string("tests").add("ii", 1, len(names))
        for name in names:
            known = self.topics.get(name)
            made.add("h", 0 if known is not None else _UNKNOWN_TOPIC).string(name).add("b", 0)
            made.add("i", len(known or ()))
            for number in range(len(known or ())):
                made.add("hiiiiii", 0, number, 1, 1, 1, 1, 1)
        return False

    def _coordinator(self, read: "_Reader", made: "_Writer", version: int) -> bool:
        read.string()
        denied = self.no_groups and version and not read.number("b")
        if version:
            made.add("ih", 0, _NO_GROUP if denied else 0).string(None)
        else:
            made.add("h", 0)
        made.add("i", 1).string("127.0.0.1").add("i", self.port)
        return False

    def _handshake(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        made.add("hi", 0 if read.string() == "PLAIN" else 33, 1).string("PLAIN")
        return False

    def _authenticate(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        user, password = read.data_of().decode().split("\0")[1:]
        good = self.login == (user, password)
        # A broker is free to repeat what it was sent.
        made.add("h", 0 if good else 58).string(
            None if good else f"no login for {user}:{password}"
        ).piece(b"")
        return False

    def _create_topics(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        made.add("ii", 0, count := read.number("i"))
        for _topic in range(count):
            name, parts = read.string() or "", read.number("i")
            read.number("h")
            assert (read.number("i"), read.number("i")) == (0, 0)
            made.string(name).add("h", _EXISTS if name in self.topics else 0).string(None)
            if name not in self.topics:
                self.topics[name] = [Partition() for _ in range(parts if parts > 0 else 3)]
        return False

    def _init_producer(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        name = read.string()
        self._producers += 1
        producer, epoch = self._producers, 0
        if name is not None:
            known = self._transactions.get(name)
            if known is not None:
                producer, epoch = known[0], known[1] + 1
                self._end_all(producer, commit=False)
            self._transactions[name] = producer, epoch
        made.add("ihqh", 0, 0, producer, epoch)
        return False

    def _add_partitions(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        fenced = self._is_fenced(read)
        made.add("ii", 0, topics := read.number("i"))
        for _topic in range(topics):
            made.string(read.string()).add("i", parts := read.number("i"))
            for _part in range(parts):
                made.add("ih", read.number("i"), _FENCED if fenced else 0)
        return False

    def _is_fenced(self, read: "_Reader") -> int:
        name, producer, epoch = read.string() or "", read.number("q"), read.number("h")
        self._current = producer
        return self._transactions.get(name) != (producer, epoch)

    def _end_transaction(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        fenced = self._is_fenced(read)
        if not fenced:
            self._end_all(self._current, commit=bool(read.number("b")))
        made.add("ih", 0, _FENCED if fenced else 0)
        self.changed.notify_all()
        return False

    def _add_offsets(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        made.add("ih", 0, _FENCED if self._is_fenced(read) else 0)
        return False

    def _commit_offsets(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        name, group, producer, epoch = (
            read.string() or "",
            read.string() or "",
            read.number("q"),
            read.number("h"),
        )
        fenced = self._transactions.get(name) != (producer, epoch)
        made.add("ii", 0, topics := read.number("i"))
        for _topic in range(topics):
            topic = read.string() or ""
            made.string(topic).add("i", parts := read.number("i"))
            for _part in range(parts):
                number, offset, text = read.number("i"), read.number("q"), read.string() or ""
                known = self._part(topic, number) is not None
                if known and not fenced:
                    self._pending.setdefault(producer, {})[group, topic, number] = offset, text
                made.add("ih", number, _FENCED if fenced else 0 if known else _UNKNOWN_TOPIC)
        return False

    def _fetch_offsets(self, read: "_Reader", made: "_Writer", _: int) -> bool:
        group = read.string() or ""
        made.add("i", topics := read.number("i"))
        for _topic in range(topics):
            topic = read.string() or ""
            made.string(topic).add("i", parts := read.number("i"))
            for _part in range(parts):
                number = read.number("i")
                offset, text = self.offsets.get((group, topic, number), (-1, ""))
                made.add("iq", number, offset).string(text).add("h", 0)
        return False

    def _end_all(self, producer: int, *, commit: bool) -> None:
        pending = self._pending.pop(producer, {})
        if commit:
            self.offsets |= pending
        for parts in self.topics.values():
            for part in parts:
                part.end(producer, commit=commit)

    def _part(self, topic: str, number: int) -> Partition | None:
        known = self.topics.get(topic, [])
        return known[number] if 0 <= number < len(known) else None


_NAMES = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    9: "fetch_offsets",
    10: "coordinator",
    17: "handshake",
    19: "create_topics",
    22: "init_producer",
    24: "add_partitions",
    25: "add_offsets",
    26: "end_transaction",
    28: "commit_offsets",
    36: "authenticate",
}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self._at = data, 0

    def number(self, kind: str) -> int:
        (found,) = struct.unpack_from(f">{kind}", self.data, self._at)
        self._at += struct.calcsize(f">{kind}")
        return int(found)

    def string(self) -> str | None:
        size = self.number("h")
        return None if size < 0 else self._taken(size).decode()

    def data_of(self) -> bytes:
        return self._taken(max(0, self.number("i")))

    def _taken(self, size: int) -> bytes:
        self._at += size
        return self.data[self._at - size : self._at]


class _Writer:
    def __init__(self) -> None:
        self.data = b""

    def add(self, kinds: str, *numbers: int) -> "_Writer":
        self.data += struct.pack(f">{kinds}", *numbers)
        return self

    def string(self, text: str | None) -> "_Writer":
        self.add("h", -1 if text is None else len(text.encode()))
        self.data += (text or "").encode()
        return self

    def piece(self, data: bytes) -> "_Writer":
        self.add("i", len(data))
        self.data += data
        return self


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        served: Any = self.server
        served.sockets.append(self.request)
        try:
            while True:
                (size,) = struct.unpack(">i", self._whole(4))
                read = _Reader(self._whole(size))
                key, version, number = read.number("h"), read.number("h"), read.number("i")
                if key == 18:
                    body = _Writer().add("hi", 35 if version else 0, len(_VERSIONS)).data
                    body += b"".join(
                        struct.pack(">hhh", each, *span) for each, span in _VERSIONS.items()
                    )
                else:
                    read.string()
                    found = served.broker.answer(key, version, read)
                    if found is None:
                        return
                    body = found
                self.request.sendall(struct.pack(">ii", len(body) + 4, number) + body)
        except (OSError, EOFError):
            return

    def _whole(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.request.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    tls: ssl.SSLContext | None = None

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self.tls is None:
            return connection, address
        return self.tls.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        ), address


@contextmanager
def broker(certificate: Path | None = None, key: Path | None = None) -> Iterator[Broker]:
    """With a certificate, connections are TLS."""
    made = Broker()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        kept: Any = server
        kept.broker, kept.sockets = made, []
        if certificate is not None:
            server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.tls.load_cert_chain(certificate, key)
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            for each in kept.sockets:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed
            thread.join()
