"""The options of MongoDB, its client and errors, and conversion of BSON values."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, DecimalException
from typing import Any
from zoneinfo import ZoneInfo

import bson.json_util
import pyarrow as pa
from bson import Binary, Decimal128, Int64, ObjectId
from bson.errors import BSONError, InvalidId
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    CursorNotFound,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.mongodb.options import MongoAddress, MongoWriteOptions
from spark_channel.connectors.records.conversion import text_of
from spark_channel.errors import ChannelError, OptionError, SchemaError

__all__ = ["Documents", "Encoder", "connected", "explained", "is_passing", "plain", "stored_at"]


Documents = Collection[dict[str, Any]]
_DENIED = {13: "its role lacks a right", 18: "the login is refused", 8000: "the login is refused"}

_AS_IT_IS = frozenset({str, int, float, bool, type(None), datetime})
_RELAXED = bson.json_util.RELAXED_JSON_OPTIONS


@contextmanager
def connected(options: MongoAddress, failure: type[ChannelError]) -> Iterator[Documents]:
    """The collection, and its client closed at the end; errors of the driver become `failure`."""
    client = _client(options)
    try:
        with explained(options, failure):
            yield client[options.database_name][options.collection]
    finally:
        client.close()


def _client(options: MongoAddress) -> MongoClient[dict[str, Any]]:
    login: dict[str, Any] = {}
    if options.user is not None:
        login["username"] = options.user
    if options.password is not None:
        login["password"] = options.password.get_secret_value()
    if options.auth_source is not None:
        login["authSource"] = options.auth_source
    wait = round(options.connect_timeout * 1000)
    try:
        return MongoClient(
            options.url,
            tz_aware=True,
            datetime_conversion="DATETIME_AUTO",
            appname="spark-channel",
            connectTimeoutMS=wait,
            serverSelectionTimeoutMS=wait,
            socketTimeoutMS=round(options.socket_timeout * 1000),
            **login,
        )
    except (PyMongoError, ValueError) as error:
        raise OptionError(
            f"option 'url' ({options.address}): {options.hide(str(error))}",
            option="url",
            takes="MongoDB's connection string",
        ) from None


def stored_at(options: MongoAddress, failure: type[ChannelError]) -> Stored:
    """The collection, by what its server says of itself; a view is not looked into."""
    names, is_view = {f"at {options.hosts}"}, True
    with (
        suppress(ChannelError),
        connected(options, failure) as documents,
    ):
        # The role may lack the right to list.
        hello = documents.database.command("hello")
        if hello.get("setName"):
            names.add(f"set {hello['setName']} of {sorted(map(str, hello.get('hosts', ())))}")
        elif hello.get("topologyVersion"):
            names.add(f"process {hello['topologyVersion'].get('processId')}")
        collections = documents.database.list_collections(filter={"name": documents.name})
        is_view = any(collection.get("type") == "view" for collection in collections)
    parts = frozenset({(options.database_name, options.collection)})
    return Stored("mongodb", frozenset(names), parts, complete=not is_view)


@contextmanager
def explained(options: MongoAddress, failure: type[ChannelError]) -> Iterator[None]:
    try:
        yield
    except OperationFailure as error:
        reason = _DENIED.get(error.code or 0)
        hint = f"; {reason}: check 'user', 'password' and 'authSource'" if reason else ""
        raise failure(
            f"{options.address}: {options.hide(str(error.details or error))[:500]}{hint}"
        ) from options.hidden(error)
    except ServerSelectionTimeoutError as error:
        raise failure(
            f"{options.address}: no server answers within {options.connect_timeout:g} s ('connectTimeout'): "
            f"{options.hide(str(error))[:300]}"
        ) from options.hidden(error)
    except ConfigurationError as error:
        raise OptionError(
            f"option 'url' ({options.address}): {options.hide(str(error))}", option="url"
        ) from options.hidden(error)
    except (BSONError, RecursionError) as error:
        raise failure(
            f"{options.address}: a document cannot be decoded, since it is damaged, not Unicode or nested too deep: "
            f"{str(error)[:200]}"
        ) from options.hidden(error)
    except PyMongoError as error:
        raise failure(f"{options.address}: {options.hide(str(error))[:500]}") from options.hidden(
            error
        )
    except (
        KeyError,
        TypeError,
        AttributeError,
    ) as error:  # of pymongo, which takes answers as they come
        raise failure(
            f"{options.address}: the server answers in a form that is not MongoDB's ({type(error).__name__}: "
            f"{options.hide(str(error))[:200]}); check that 'url' names a MongoDB server"
        ) from options.hidden(error)


def is_passing(error: Exception) -> bool:
    """Whether a read can continue after it: the connection is lost, or the server forgot the cursor."""
    return isinstance(error, (AutoReconnect, CursorNotFound))


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Values of BSON's own types become Python's; what is nested keeps its structure."""
    return {
        name: value if type(value) in _AS_IT_IS else _plain(value)
        for name, value in document.items()
    }


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return plain(value)
    if isinstance(value, list):
        return [item if type(item) in _AS_IT_IS else _plain(item) for item in value]
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, Decimal128):
        return value.to_decimal()
    if isinstance(value, (Binary, bytes)):
        return bytes(value)
    # A time out of Python's range, a regular expression, code: as extended JSON.
    return bson.json_util.dumps(value, json_options=_RELAXED)


class Encoder:
    """Makes documents of rows; `document` raises ValueError for a row that has no exact one."""

    def __init__(self, schema: pa.Schema, options: MongoWriteOptions) -> None:
        self._zone, self._cuts = ZoneInfo(options.time_zone), options.truncate_times
        self._columns = []
        types = options.field_types
        for name in types:
            if name not in schema.names:
                raise SchemaError(
                    f"option 'fieldTypes' names {name!r}; the rows have {', '.join(schema.names)}"
                )
        for field in schema:
            if field.name.startswith("$") or not all(field.name.split(".")) or "\0" in field.name:
                raise SchemaError(
                    f"column {field.name!r}: a field of MongoDB cannot have this name; rename the column"
                )
            if _holds(field.type, pa.types.is_time) or _holds(field.type, pa.types.is_duration):
                raise SchemaError(
                    f"column {field.name!r} has type {field.type}, which BSON does not have; cast it to a string"
                )
            if _holds(field.type, pa.types.is_map):
                raise SchemaError(
                    f"column {field.name!r} is a map, which BSON does not have; make it a struct or JSON text"
                )
            wide = pa.types.is_integer(field.type) and field.type.bit_width == 64
            self._columns.append((field.name, field.name.split("."), types.get(field.name), wide))

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self._columns]

    def document(self, row: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for name, path, declared, wide in self._columns:
            value = row[name]
            if value is not None:
                try:
                    value = (
                        self._bson(value) if declared is None else self._declared(value, declared)
                    )
                except (ValueError, OverflowError, DecimalException) as error:
                    raise ValueError(
                        f"column {name!r}: {str(error) or 'it has no exact BSON value'}"
                    ) from None
                if wide and declared is None:
                    value = Int64(value)
            inside = document
            for part in path[:-1]:
                inside = inside.setdefault(part, {})
                if not isinstance(inside, dict):
                    raise ValueError(f"column {name!r}: {part!r} is a value, not a document")
            inside[path[-1]] = value
        return document

    def _bson(self, value: object) -> Any:
        if isinstance(value, (datetime, date)):
            return self._instant(value)
        if isinstance(value, Decimal):
            return Decimal128(value)
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} does not fit 64 bits")
        if isinstance(value, dict):
            return {name: self._bson(item) for name, item in value.items()}
        return [self._bson(item) for item in value] if isinstance(value, list) else value

    def _instant(self, value: datetime | date) -> datetime:
        if not isinstance(value, datetime):
            value = datetime.combine(value, time())
        if value.microsecond % 1000:
            if not self._cuts:
                raise ValueError(
                    f"{value.isoformat(' ')} is finer than the milliseconds that MongoDB keeps; set 'truncateTimes', "
                    "or cast it to a string"
                )
            value = value.replace(microsecond=value.microsecond // 1000 * 1000)
        return (value if value.tzinfo is not None else value.replace(tzinfo=self._zone)).astimezone(
            UTC
        )

    def _declared(self, value: object, declared: str) -> Any:
        kind, _, details = declared.partition(":")
        if kind == "array":
            return self._array(value, details)
        if value == "" and kind not in ("string", "binary"):
            return None
        return getattr(self, f"_as_{kind.lower()}")(value)

    def _array(self, value: object, details: str) -> list[Any]:
        """`details` is the separator, a colon, and the type of the items."""
        if isinstance(value, list):
            return [self._bson(item) for item in value]
        separator, _, item = details.rpartition(":") if details.count(":") else (details, "", "")
        texts = self._as_string(value).split(separator or ",") if value != "" else []
        return [self._declared(text, item) if item else text for text in texts]

    def _as_objectid(self, value: object) -> ObjectId:
        try:
            return ObjectId(str(value))
        except InvalidId:
            raise ValueError(
                f"{str(value)[:60]!r} is not an ObjectId, which has 24 hexadecimal digits"
            ) from None

    def _as_int(self, value: object) -> int:
        number = int(self._as_long(value))
        if not -(2**31) <= number < 2**31:
            raise ValueError(f"{number} does not fit 32 bits")
        return number

    def _as_long(self, value: object) -> Int64:
        number = _number(value)
        if number != number.to_integral_value() or not -(2**63) <= number < 2**63:
            raise ValueError(f"{str(value)[:60]!r} is not a whole number of 64 bits")
        return Int64(int(number))

    def _as_double(self, value: object) -> float:
        return float(value if isinstance(value, float) else _number(value))

    def _as_decimal(self, value: object) -> Decimal128:
        return Decimal128(_number(value))

    def _as_string(self, value: object) -> str:
        return text_of(value, self._zone)

    def _as_bool(self, value: object) -> bool:
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, (bool, int)):
            raise ValueError(f"{str(value)[:60]!r} is not true or false")
        return bool(value)

    def _as_date(self, value: Any) -> datetime:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value.strip())
            except ValueError:
                raise ValueError(
                    f"{value[:60]!r} is not a time, such as 2024-01-31 08:30:00"
                ) from None
        if not isinstance(value, (datetime, date)):
            raise ValueError(f"{str(value)[:60]!r} is not a time")
        return self._instant(value)

    def _as_binary(self, value: object) -> bytes:
        return value if isinstance(value, bytes) else self._as_string(value).encode()

    def _as_json(self, value: object) -> object:
        if not isinstance(value, str):
            return self._bson(value)
        try:
            return bson.json_util.loads(value)
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"{value[:60]!r} is not JSON") from None


def _number(value: object) -> Decimal:
    if isinstance(value, (bool, int, Decimal)):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value))
    try:
        return Decimal(value.strip() if isinstance(value, str) else "")
    except DecimalException:
        raise ValueError(f"{str(value)[:60]!r} is not a number") from None


def _holds(kind: pa.DataType, test: Any) -> bool:
    """Whether the type, or one inside it, is such."""
    return test(kind) or any(_holds(kind.field(n).type, test) for n in range(kind.num_fields))
