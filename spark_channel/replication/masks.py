"""Masks: what leaves the reader in place of a column's values."""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError
from spark_channel.lazy import compute as pc
from spark_channel.option_types import is_reference, resolve_references
from spark_channel.replication.patterns import matches
from spark_channel.transform.transformer import Flow, Transformer, TransformResult

__all__ = ["Mask", "MaskColumns", "check_renamed", "mask_of", "parse_mask", "state_of_masks"]

TAKES = "hmac(${env:NAME}), hmac(${file:PATH}), sha256, null, drop, partial(N) or keep"
_SHORTEST_KEY = 16
_PARTIAL = re.compile(r"partial\((\d{1,4})\)")
_HMAC = re.compile(r"hmac\((.*)\)", re.DOTALL)
_STAR = "*"

Kind = Literal["hmac", "sha256", "null", "drop", "partial", "keep"]


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask as the file names it. `key` is a reference to the key, and never the key itself."""

    kind: Kind
    key: str = ""
    visible: int = 0

    def __str__(self) -> str:
        if self.kind == "hmac":
            return f"hmac({self.key})"
        return f"partial({self.visible})" if self.kind == "partial" else self.kind


def parse_mask(text: str) -> Mask:
    """The mask that a text names.

    Raises:
        ValueError: what a mask may be. It does not repeat the text, which may hold a key.
    """
    spec = text.strip()
    if spec in ("sha256", "null", "drop", "keep"):
        return Mask(spec)  # type: ignore[arg-type]  # one of the four
    if (match := _PARTIAL.fullmatch(spec)) is not None:
        return Mask("partial", visible=int(match[1]))
    if (match := _HMAC.fullmatch(spec)) is not None:
        key = match[1].strip()
        if not is_reference(key):
            raise ValueError(
                "hmac(${env:NAME}) or hmac(${file:PATH}): the key itself must not be in the file"
            )
        return Mask("hmac", key=key)
    raise ValueError(TAKES)


def mask_of(masks: Mapping[str, str], stream: str, column: str) -> Mask | None:
    """The mask of a column: that of its name, else of the last pattern that matches; None = none does.

    A pattern is compared with the column's name and with `stream.column`, without regard to case: a column that is
    spelled in another case is masked, too.
    """
    by_pattern = None
    exact = None
    for pattern, text in masks.items():
        plain = not {"*", "?"} & set(pattern)
        if matches(pattern, column) or matches(pattern, f"{stream}.{column}"):
            if plain:
                exact = text
            else:
                by_pattern = text
    chosen = by_pattern if exact is None else exact
    return None if chosen is None else parse_mask(chosen)


def check_renamed(
    masks: Mapping[str, str], stream: str, source: Sequence[str], target: Sequence[str]
) -> None:
    """Check that no column of the source is a masked one of the target under a name that no mask matches.

    Raises:
        SchemaError: one may be.
    """
    source_names, target_names = ({name.lower() for name in names} for names in (source, target))
    new = [
        name
        for name in source
        if name.lower() not in target_names and not mask_of(masks, stream, name)
    ]
    for before in target if new else ():
        mask = mask_of(masks, stream, before)
        if mask is not None and mask.kind != "keep" and before.lower() not in source_names:
            raise SchemaError(
                f"the source has no column {before!r} now, which has mask {mask}, and column {new[0]!r} is new: it may "
                f"have the same values, and no mask matches its name. Write a mask for {new[0]!r} into columns, or "
                "'keep'"
            )


def state_of_masks(masks: Mapping[str, str]) -> str:
    """What masks make of values, for the name of a table's state: another key has another id.

    Raises:
        OptionError: a key is missing or too short.
    """
    parts = []
    for pattern in sorted(masks):
        mask = parse_mask(masks[pattern])
        if mask.kind == "hmac":
            parts.append(f"{pattern}=hmac:{key_id(_key(mask, pattern))}")
        else:
            parts.append(f"{pattern}={mask}")
    return ";".join(parts)


def key_id(key: bytes) -> str:
    """Names a key without a hint of it: keys are too long to be found by trying."""
    return hmac.new(key, b"spark-channel key id", hashlib.sha256).hexdigest()[:12]


def _key(mask: Mask, where: str) -> bytes:
    key = str(resolve_references({f"columns.{where}": mask.key})[f"columns.{where}"])
    if len(key) < _SHORTEST_KEY:
        takes = f"a key of {_SHORTEST_KEY} characters or more"
        raise OptionError(
            f"columns.{where}: {mask} names a key that is too short; it takes {takes}, such as "
            "`openssl rand -hex 32` prints",
            option=f"columns.{where}",
            takes=takes,
        )
    return key.encode()


@dataclass(frozen=True)
class MaskColumns(Transformer):
    """Masks the columns of one stream. The keys are read where it is made, and are in no `repr`.

    A masked value is a text (hmac, sha256, partial) or NULL; `drop` leaves the column out.
    """

    stream: str
    masks: Mapping[str, str]
    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    step: ClassVar[str] = "columns"

    @classmethod
    def for_stream(cls, stream: str, masks: Mapping[str, str]) -> "MaskColumns":
        """
        Raises:
            OptionError: a key is missing or too short.
        """
        parsed = {pattern: parse_mask(text) for pattern, text in masks.items()}
        keys = {
            mask.key: _key(mask, pattern) for pattern, mask in parsed.items() if mask.kind == "hmac"
        }
        return cls(stream, dict(masks), keys)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        self._check_named(schema)
        fields = []
        for column in schema:
            mask = mask_of(self.masks, self.stream, column.name)
            if mask is None or mask.kind == "keep":
                fields.append(column)
            elif mask.kind == "null":
                fields.append(pa.field(column.name, column.type))
            elif mask.kind != "drop":
                _check_maskable(column, mask)
                fields.append(pa.field(column.name, pa.string(), nullable=column.nullable))
        if not fields:
            raise SchemaError(
                f"{self.stream}: every column is dropped; keep one, or disable the stream"
            )
        return pa.schema(fields)

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        flows = []
        for number, name in enumerate(schema.names):
            mask = mask_of(self.masks, self.stream, name)
            if mask is None or mask.kind == "keep":
                flows.append(Flow((number,)))
            elif mask.kind != "drop":
                flows.append(Flow((number,), mask.kind, masked=True))
        return tuple(flows)

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        arrays, fields = [], []
        for column, values in zip(batch.schema, batch.columns, strict=True):
            mask = mask_of(self.masks, self.stream, column.name)
            if mask is not None and mask.kind == "drop":
                continue
            if mask is None or mask.kind == "keep":
                arrays.append(values)
                fields.append(column)
            elif mask.kind == "null":
                arrays.append(pa.nulls(len(values), column.type))
                fields.append(pa.field(column.name, column.type))
            else:
                arrays.append(self._masked(values, mask))
                fields.append(pa.field(column.name, pa.string(), nullable=column.nullable))
        return TransformResult(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))

    def _masked(self, values: pa.Array, mask: Mask) -> pa.Array:
        if mask.kind == "partial":
            return _partial(_as_text(values), mask.visible)
        if mask.kind == "hmac":
            key = self.keys[mask.key]
            return _digested(_as_text(values), lambda raw: hmac.digest(key, raw, "sha256").hex())
        return _digested(_as_text(values), lambda raw: hashlib.sha256(raw).hexdigest())

    def _check_named(self, schema: pa.Schema) -> None:
        """Check that each column that is named without a pattern is there: a misspelled mask masks nothing."""
        for pattern in self.masks:
            if {"*", "?"} & set(pattern) or parse_mask(self.masks[pattern]).kind == "keep":
                continue
            if not any(
                matches(pattern, name) or matches(pattern, f"{self.stream}.{name}")
                for name in schema.names
            ):
                raise SchemaError(
                    f"{self.stream}: columns names {pattern!r}, and the table has no such column, so nothing would be "
                    f"masked. It has: {', '.join(schema.names)}. Correct the name, or write a pattern such as "
                    f"'*.{pattern}'"
                )


def _check_maskable(column: pa.Field, mask: Mask) -> None:
    kind = column.type
    plain = (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    if plain or (mask.kind != "partial" and _has_text(kind)):
        return
    takes = "null or drop" if not _has_text(kind) else "hmac, sha256, null or drop"
    raise SchemaError(
        f"column {column.name!r} is {kind}, which {mask} cannot mask; it takes {takes}"
    )


def _has_text(kind: pa.DataType) -> bool:
    """Whether each value of the type has one text, whatever the batch."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
        or types.is_floating(kind)
    )


def _as_text(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_fixed_size_binary(kind):
        return pc.cast(values, pa.binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return values
    return values if pa.types.is_string(kind) else pc.cast(values, pa.string())


def _digested(values: pa.Array, digest: Callable[[bytes], str]) -> pa.Array:
    """`digest` of the bytes of each value; equal values are made once."""
    encoded = values.dictionary_encode()
    raw = encoded.dictionary.cast(
        pa.large_binary() if _is_large(values.type) else pa.binary()
    ).to_pylist()
    digests = pa.array([digest(value) for value in raw], pa.string())
    return digests.take(encoded.indices)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _partial(values: pa.Array, visible: int) -> pa.Array:
    """The last `visible` characters behind stars; a value of so many characters or fewer is stars alone."""

    def one(value: object) -> str:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        if len(text) <= visible or not visible:
            return _STAR * len(text)
        return _STAR * (len(text) - visible) + text[-visible:]

    encoded = values.dictionary_encode()
    masked = pa.array([one(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return masked.take(encoded.indices)
