"""DataX jobs as one file of a replication, where they copy whole tables."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from spark_channel.connectors.base.registry import all_connectors
from spark_channel.connectors.sql.statements import parsed_name
from spark_channel.masking import without_login
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.transform import Rename
from spark_channel.transform.transformer import Labelled

__all__ = ["Converted", "convert_jobs"]

_EMPTIES = re.compile(r"\s*(?:truncate(?:\s+table)?|delete\s+from)\s+(\S+?)\s*;?\s*", re.IGNORECASE)
_COMPATIBLE = frozenset(
    [
        "tinyint1isbit",
        "zerodates",
        "createtable",
        "convert",
        "ledger",
        "user",
        "password",
        "url",
        "dbtable",
        "startsql",
        "commit",
        "batchsize",
    ]
)
"""Options of a writer that a stream needs not, or has otherwise."""
_DEFAULT_SCHEMA = {"postgresql": "public", "sqlite": "", "duckdb": "main"}


@dataclass
class Converted:
    """The file's text, "" when no job could be converted; and why the others could not, by their file."""

    text: str
    refused: list[tuple[str, str]] = field(default_factory=list)


def convert_jobs(jobs: Sequence[tuple[str, TransferSpec]]) -> Converted:
    """The jobs that copy a table from the first job's source to its target, and empty that before, as one file.

    Passwords become references to environment variables.
    """
    made, streams = Converted(""), {}
    places: tuple[dict[str, Any], dict[str, Any]] | None = None
    speeds: dict[str, int] = {}
    for name, spec in jobs:
        why = _why_not(spec)
        if not why:
            own = (_place(spec.reader, "SOURCE"), _place(spec.writer, "TARGET"))
            places = places or own
            stream = _stream_name(spec.reader)
            if own != places:
                why = "it has another source or target than the first job: convert such jobs apart"
            elif stream in streams:
                why = f"another job copies {stream}, too"
            else:
                streams[stream] = _stream(spec)
                for unit, speed in (
                    ("rows_per_second", spec.rows_per_second),
                    ("bytes_per_second", spec.bytes_per_second),
                ):
                    if speed:
                        speeds[unit] = max(speed, speeds.get(unit, 0))
        if why:
            made.refused.append((name, why))
    if places is None or not streams:
        return made
    data: dict[str, Any] = {"source": places[0], "target": places[1], "streams": streams}
    if speeds:
        data["limit"] = speeds
    made.text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    return made


def _why_not(spec: TransferSpec) -> str:
    """Why a job cannot become a stream; "" = it can."""
    for end in (spec.reader, spec.writer):
        if end.spark_format or not isinstance(end.options.get("dbtable"), str):
            return f"{end.name} names no table of a database that is read or written whole"
        if end.parts or spec.targets:
            return "it has several tables or servers: convert a job for each"
    columns = _columns(spec.reader)
    for step in spec.transformers:
        inner = step.inner if isinstance(step, Labelled) else step
        if not isinstance(inner, Rename) or (columns and list(inner.names) != columns):
            return "it renames or changes columns, which a stream does not"
    writer = {key.lower(): value for key, value in spec.writer.options.items()}
    others = sorted({*writer} - _COMPATIBLE)
    if others:
        return f"its writer has {others[0]!r}, which a stream does not do"
    if not columns and spec.transformers:
        return "its columns are matched by position: name them in the reader"
    emptied = [_EMPTIES.fullmatch(each) for each in _scripts(writer.get("startsql"))]
    whole = [each is not None and _same(each[1], str(writer["dbtable"])) for each in emptied]
    if not all(whole) or not (whole or spec.save_mode == "overwrite"):
        return (
            "it adds its rows to those that are there, or runs other SQL: a stream of mode full replaces all rows, and "
            "incremental needs update_key"
        )
    return ""


def _scripts(value: Any) -> list[str]:
    if value is None:
        return []
    text = str(value)
    found = json.loads(text) if text.lstrip().startswith("[") else [text]
    return [str(each) for each in found]


def _same(one: str, other: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r'[`"\[\]]', "", text).lower()

    return plain(one) == plain(other)


def _columns(end: Endpoint) -> list[str]:
    text = end.options.get("columns")
    found = json.loads(text) if isinstance(text, str) and text.startswith("[") else text or []
    return [str(each) for each in found]


def _place(end: Endpoint, half: str) -> dict[str, Any]:
    given = {key.lower(): value for key, value in end.options.items()}
    made = {"url": without_login(str(given["url"]))}
    if "user" in given:
        made["user"] = str(given["user"])
    if "password" in given:
        made["password"] = f"${{env:{half}_PASSWORD}}"
    return made


def _stream_name(end: Endpoint) -> str:
    dialects: Mapping[str, str] = {each.name: each.dialect for each in all_connectors()}
    text = str(end.options["dbtable"])
    tree = parsed_name(text, dialects.get(end.name, ""))
    schema, name = ("", text) if tree is None else (tree.db, tree.name)
    if not schema:
        database = (
            without_login(str(end.options.get("url", ""))).partition("?")[0].rpartition("/")[2]
        )
        schema = _DEFAULT_SCHEMA.get(end.name, database)
    return f"{schema}.{name}" if schema else name


def _stream(spec: TransferSpec) -> dict[str, Any]:
    given = {key.lower(): value for key, value in spec.reader.options.items()}
    made: dict[str, Any] = {"object": re.sub(r'[`"]', "", str(spec.writer.options["dbtable"]))}
    if given.get("where"):
        made["where"] = given["where"]
    more: dict[str, Any] = {}
    if columns := _columns(spec.reader):
        more["columns"] = columns
    if given.get("partitioncolumn"):
        more["partitionColumn"] = given["partitioncolumn"]
    return made | ({"source_options": more} if more else {})
