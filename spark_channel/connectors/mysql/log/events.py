"""The events of a binary log, as a server sends them: their frame, and what each kind says. Pure.

The format is described in https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html
and https://mariadb.com/kb/en/replication-protocol/.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from uuid import UUID

import pyarrow as pa

from spark_channel.connectors.mysql.log.position import Gtid
from spark_channel.connectors.mysql.log.statements import LoggedStatement
from spark_channel.errors import SourceError

__all__ = [
    "DAMAGE",
    "Event",
    "Kind",
    "TableMap",
    "damaged",
    "events",
    "inflated",
    "packed_integer",
    "statement_of",
    "table_map",
]

_HEADER = Struct("<IBIIIH").unpack_from
_FLAGS = Struct("<H").unpack_from
_BODY = 19
_CHECKSUM = 4
_INT = int.from_bytes
_OF_LOAD = 13
"""Bytes that the statement of a LOAD DATA has more."""
_VARIABLE_BYTES = {0: 4, 1: 8, 3: 4, 4: 6}
_IGNORABLE = 0x80
_LARGEST = 1 << 30
"""Bytes of a transaction or a statement that a server compresses: as many as its max_allowed_packet may have."""
DAMAGE = (
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    struct.error,
    ValueError,
    zlib.error,
    pa.ArrowException,
)
"""What decoding raises for bytes that do not follow the format."""
_META = {
    4: 1,
    5: 1,
    15: 2,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    140: 1,
    141: 2,
    242: 1,
    245: 1,
    246: 2,
    247: 2,
    248: 2,
    249: 1,
    250: 1,
    251: 1,
    252: 1,
    253: 2,
    254: 2,
    255: 1,
}
"""Bytes of metadata by type."""
_BIG_ENDIAN = frozenset({246, 247, 248, 254})
"""The first byte of their metadata is another thing than the second."""
_NUMBERS = frozenset({0, 1, 2, 3, 4, 5, 8, 9, 13, 246})
"""What has a sign in the metadata; a YEAR has one, too."""
_TEXTS = frozenset({15, 249, 250, 251, 252, 253, 254, 140, 141})
_ENUM, _SET, _GEOMETRY = 247, 248, 255
"""MariaDB lists a geometry among the texts, MySQL does not."""


def damaged(kind: int, position: int, error: BaseException) -> SourceError:
    return SourceError(
        f"an event of kind {kind} before position {position} of the binary log is not understood "
        f"({type(error).__name__} {str(error)[:100]}): it was damaged, or is of a newer server"
    )


class Kind:
    """The kinds of events that matter here; rows of version 1 are MariaDB's, of version 2 MySQL's."""

    QUERY = 2
    ROTATE = 4
    FORMAT = 15
    XID = 16
    EXECUTE_LOAD = 18
    TABLE_MAP = 19
    INSERTS = frozenset({23, 30, 166})
    UPDATES = frozenset({24, 31, 167})
    DELETES = frozenset({25, 32, 168})
    INCIDENT = 26
    ROWS = INSERTS | UPDATES | DELETES
    WITH_EXTRA = frozenset({30, 31, 32, 39})
    """The second version has data of plugins between head and rows."""
    COMPRESSED = frozenset({166, 167, 168})
    MYSQL_GTID = 33
    ANONYMOUS_GTID = 34
    XA_PREPARE = 38
    PARTIAL_UPDATE = 39
    PAYLOAD = 40
    TAGGED_GTID = 42
    MARIADB_GTID = 162
    COMPRESSED_QUERY = 165
    STATEMENTS = frozenset({QUERY, COMPRESSED_QUERY, EXECUTE_LOAD})
    WITHOUT_ROWS = frozenset(
        {3, ROTATE, 5, 7, 9, 11, 13, 14, FORMAT, 17, 27, 28, 29, 35, 36, 37, 41, 160, 161, 163, 164}
    )
    """Ends and heads of files, heartbeats, comments, and what belongs to a statement that follows."""


@dataclass(frozen=True, slots=True)
class Event:
    """`body` to `end` is what the kind says; `position` is where the next event begins in its file."""

    kind: int
    seconds: int
    server: int
    position: int
    data: bytes
    body: int
    end: int

    def gtid(self) -> Gtid:
        """The transaction that this event, MARIADB_GTID or MYSQL_GTID, begins."""
        data, at = self.data, self.body
        if self.kind == Kind.MARIADB_GTID:
            return (
                _INT(data[at + 8 : at + 12], "little"),
                self.server,
                _INT(data[at : at + 8], "little"),
            )
        return str(UUID(bytes=data[at + 1 : at + 17])), _INT(data[at + 17 : at + 25], "little")

    def microseconds(self) -> int:
        """The time of the transaction that this event begins; MySQL 8 says it in microseconds, where it was made."""
        at = self.body + 42  # flags, uuid, number, and the two numbers of its order
        microseconds = 0
        if self.kind == Kind.MYSQL_GTID and self.end >= at + 7:
            microseconds = _INT(self.data[at : at + 7], "little")
            if microseconds >> 55 and self.end >= at + 14:
                # The first server's own follows, 0 for one before MySQL 8.
                microseconds = _INT(self.data[at + 7 : at + 14], "little")
        return microseconds & ((1 << 55) - 1) or self.seconds * 1_000_000

    @property
    def has_no_rows(self) -> bool:
        """Whether its kind changes no rows, as far as is known here, or the server says that it may be left out."""
        return self.kind in Kind.WITHOUT_ROWS or bool(_FLAGS(self.data, 17)[0] & _IGNORABLE)

    def file(self) -> str:
        """The file in which the log continues after a ROTATE."""
        return self.data[self.body + 8 : self.end].decode()


def events(packets: Iterable[bytes], *, checksums: bool) -> Iterator[Event]:
    """The events in packets of a dump, without the byte before each.

    `checksums`: whether events before the first FORMAT have one; the FORMAT says so for later events.

    Raises:
        SourceError: an event that was damaged on its way, or in the server's file.
    """
    for data in packets:
        if len(data) < _BODY:
            raise SourceError(f"an event of the binary log has {len(data)} bytes: it is damaged")
        seconds, kind, server, size, position, _ = _HEADER(data, 0)
        if size != len(data):
            raise SourceError(
                f"an event of the binary log has {len(data)} bytes, and says {size}: it is damaged"
            )
        if kind == Kind.FORMAT:
            checksums = data[-_CHECKSUM - 1] == 1
        end = size
        if checksums:
            end -= _CHECKSUM
            if zlib.crc32(data[:end]) != _INT(data[end:], "little") and not _is_made_up(
                kind, position
            ):
                raise SourceError(
                    f"the event before position {position} of the binary log does not fit its checksum: it was damaged "
                    "on its way or on the server's disk. Check the file with mariadb-binlog or mysqlbinlog "
                    "--verify-binlog-checksum"
                )
        elif kind == Kind.FORMAT:
            end -= _CHECKSUM
        if end < _BODY:
            raise SourceError(f"an event of the binary log has {len(data)} bytes: it is damaged")
        if kind == Kind.PAYLOAD:
            try:
                yield from _unpacked(data, end)
            except DAMAGE as error:
                raise damaged(kind, position, error) from error
        else:
            yield Event(kind, seconds, server, position, data, _BODY, end)


def _is_made_up(kind: int, position: int) -> bool:
    """A FORMAT that the server sends again at another place keeps the checksum of the first one."""
    return kind == Kind.FORMAT and position == 0


def _unpacked(data: bytes, end: int) -> Iterator[Event]:
    """The events of a whole transaction, which MySQL has compressed (binlog_transaction_compression)."""
    at, algorithm, size = _BODY, 0, 0
    while True:
        field, at = packed_integer(data, at)
        if field == 0:
            break
        length, at = packed_integer(data, at)
        value, _ = packed_integer(data, at)
        algorithm, size = (value if field == 2 else algorithm), (value if field == 3 else size)
        at += length
    packed = data[at:end]
    if algorithm == 0 and size > _LARGEST:
        raise ValueError(f"a transaction of {size} bytes")
    if algorithm == 0:
        try:
            packed = pa.decompress(packed, size, codec="zstd", asbytes=True)
        except OSError as error:
            raise ValueError(str(error)) from error
    elif algorithm != 255:
        raise SourceError(
            f"the binary log holds a transaction in compression {algorithm}, which is not known here: run "
            "SET GLOBAL binlog_transaction_compression = OFF"
        )
    offset = 0
    while offset < len(packed):
        seconds, kind, server, length, position, _ = _HEADER(packed, offset)
        if not _BODY <= length <= len(packed) - offset:
            raise ValueError(f"an event of {length} bytes in it")
        yield Event(
            kind, seconds, server, position, packed[offset : offset + length], _BODY, length
        )
        offset += length


def packed_integer(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer at `at`, and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    wide = {252: 2, 253: 3, 254: 8}[first]
    return _INT(data[at + 1 : at + 1 + wide], "little"), at + 1 + wide


def inflated(data: bytes) -> bytes:
    """Decompress MariaDB's log_bin_compress: a byte that says how many bytes the length has, the length, the data."""
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(data[1 + (data[0] & 7) :], _LARGEST)
    if not unpacking.eof:
        raise ValueError("compressed bytes without an end, or of more than 1 GiB")
    return unpacked


def statement_of(event: Event, charsets: Mapping[int, str]) -> LoggedStatement:
    """The statement of one of `Kind.STATEMENTS`; `charsets` by the numbers of their collations."""
    data, at = event.data, event.body
    length, size = data[at + 8], _INT(data[at + 11 : at + 13], "little")
    begin = at + 13 + (_OF_LOAD if event.kind == Kind.EXECUTE_LOAD else 0)
    mode, collation = _session_of(data[begin : begin + size])
    begin += size
    middle = begin + length
    if middle >= event.end or data[middle]:
        raise ValueError("a statement whose parts are longer than it")
    text = data[middle + 1 : event.end]
    if event.kind == Kind.COMPRESSED_QUERY:
        text = inflated(text)
    name = data[begin:middle].decode("utf-8", "replace")
    return LoggedStatement(name, _text_of(text, charsets.get(collation, "")), mode)


def _text_of(text: bytes, charset: str) -> str:
    """A statement in its client's character set; letters of one that Python lacks are lost."""
    codec = "cp1252" if charset == "latin1" else charset
    if text.isascii() or charset.startswith("utf8"):
        codec = "utf-8"
    try:
        return text.decode(codec or "utf-8", "replace")
    except LookupError:
        return text.decode("utf-8", "replace")


def _session_of(variables: bytes) -> tuple[int, int]:
    """(sql_mode, the client's collation) of a statement's session; 0 = it is not there."""
    at = mode = collation = 0
    while at < len(variables):
        code, at = variables[at], at + 1
        if code == 1:
            mode = _INT(variables[at : at + 8], "little")
        elif code == 4:
            collation = _INT(variables[at : at + 2], "little")
        if code in _VARIABLE_BYTES:
            at += _VARIABLE_BYTES[code]
        elif code in (2, 5, 6):  # a text behind its length; the first kind ends with a zero
            at += 1 + variables[at] + (code == 2)
        else:
            break  # both are before all other kinds
    return mode, collation


@dataclass(frozen=True, slots=True)
class TableMap:
    """How the rows of a table are in the log. With binlog_row_metadata other than FULL, `names` is empty."""

    types: bytes
    metadata: tuple[int, ...]
    names: tuple[str, ...] = ()
    unsigned: tuple[bool, ...] = ()
    collations: tuple[int, ...] = ()
    members: tuple[tuple[bytes, ...], ...] = field(default=())
    """The members of each column that is an enum or a set."""


def real_type(code: int, meta: int) -> int:
    """An enum or a set is in the log as a CHAR."""
    return meta >> 8 if code == 254 and meta >> 8 in (_ENUM, _SET) else code


def table_map(data: bytes, at: int, end: int, *, is_mariadb: bool) -> TableMap:
    """From where the number of columns is, behind the table's name."""
    count, at = packed_integer(data, at)
    types = data[at : at + count]
    length, at = packed_integer(data, at + count)
    metadata = []
    at_column = at
    for code in types:
        wide = _META.get(code, 0)
        metadata.append(
            _INT(data[at_column : at_column + wide], "big" if code in _BIG_ENDIAN else "little")
        )
        at_column += wide
    at += length
    if at_column != at:
        raise ValueError(f"{length} bytes of metadata for columns of types {list(types)}")
    fields = dict(_fields(data, at + (count + 7) // 8, end))
    real = [real_type(code, meta) for code, meta in zip(types, metadata, strict=True)]
    names = tuple(_texts(fields.get(4, b"")))
    if names and len(names) != count:
        raise ValueError(f"{len(names)} names of {count} columns")
    return TableMap(
        types,
        tuple(metadata),
        names,
        _signs(real, fields.get(1, b"")),
        _collations(real, fields, _TEXTS | {_GEOMETRY} if is_mariadb else _TEXTS),
        _members(real, fields),
    )


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    while at < end:
        kind = data[at]
        length, at = packed_integer(data, at + 1)
        yield kind, data[at : at + length]
        at += length


def _texts(data: bytes) -> Iterator[str]:
    at = 0
    while at < len(data):
        length, at = packed_integer(data, at)
        yield data[at : at + length].decode()
        at += length


def _signs(types: list[int], bits: bytes) -> tuple[bool, ...]:
    numbers = (index for index, code in enumerate(types) if code in _NUMBERS)
    unsigned = {
        index
        for number, index in enumerate(numbers)
        if number // 8 < len(bits) and bits[number // 8] & (128 >> number % 8)
    }
    return tuple(index in unsigned for index in range(len(types)))


def _integers(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = packed_integer(data, at)
        values.append(value)
    return values


def _collations(
    types: list[int], metadata: dict[int, bytes], texts: frozenset[int]
) -> tuple[int, ...]:
    """The collation of each column, 0 = unknown. The log has a default and the exceptions, or one for each column."""
    collations = [0] * len(types)
    for default, by_column, codes in ((2, 3, texts), (10, 11, frozenset({_ENUM, _SET}))):
        places = [index for index, code in enumerate(types) if code in codes]
        if default in metadata:
            usual, *pairs = _integers(metadata[default])
            other = dict(zip(pairs[::2], pairs[1::2], strict=True))
            for number, index in enumerate(places):
                collations[index] = other.get(number, usual)
        elif by_column in metadata:
            for index, collation in zip(places, _integers(metadata[by_column]), strict=True):
                collations[index] = collation
    return tuple(collations)


def _members(types: list[int], metadata: dict[int, bytes]) -> tuple[tuple[bytes, ...], ...]:
    members: list[tuple[bytes, ...]] = [()] * len(types)
    for code, number in ((_SET, 5), (_ENUM, 6)):
        data, at = metadata.get(number, b""), 0
        for index in (index for index, real in enumerate(types) if real == code):
            if at >= len(data):
                break
            count, at = packed_integer(data, at)
            texts = []
            for _ in range(count):
                length, at = packed_integer(data, at)
                texts.append(data[at : at + length])
                at += length
            members[index] = tuple(texts)
    return tuple(members)
