"""convert: the jobs of DataX as a replication's file."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from spark_channel.cli.plan import job_files, load
from spark_channel.cli.text import say
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.connectors.sql.statements import parsed_name
from spark_channel.errors import JobFileError
from spark_channel.masking import is_secret_name, without_login
from spark_channel.plain_text import one_line
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.replication.report import PARKED
from spark_channel.transform import Rename
from spark_channel.transform.transformer import Labelled

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Converted", "convert", "convert_jobs"]

_EMPTIES = re.compile(r"\s*(?:truncate(?:\s+table)?|delete\s+from)\s+(\S+?)\s*;?\s*", re.IGNORECASE)
_COMPATIBLE = frozenset(
    [
        "tinyint1isbit",
        "zerodates",
        "createtable",
        "convert",
        "sessiontimezone",
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
_OF_A_TABLE = frozenset(
    ["dbtable", "columns", "where", "partitioncolumn", "fetchsize", "url", "user", "password"]
)
"""Options of a reader that are a stream's, that `_place` writes otherwise, or that change no row."""
_DEFAULT_SCHEMA = {"postgresql": "public", "sqlite": "", "duckdb": "main"}


def convert(paths: Sequence[Path], parameters: Sequence[str]) -> int:
    """Print the jobs in these files and folders as one file of `replicate`. Returns the exit code.

    Raises:
        OptionError: a folder without job files.
    """
    specs, refused = [], []
    for path in job_files(paths):
        try:
            loaded = load(path, parameters, all_content=True, named=True)
        except JobFileError as error:
            refused.append((str(path), str(error).removeprefix(f"{path}: ")))
            continue
        specs += [(str(path), spec) for spec in loaded.specs]
    converted = convert_jobs(specs)
    refused += converted.refused
    for name, reason in (*converted.notes, *refused):
        say(f"{name}: {reason}", error=True)
    for line in converted.text.split("\n")[:-1]:
        say(line)
    return 0 if not refused else PARKED if converted.text else 2


@dataclass
class Converted:
    """The file's text, "" when no job could be converted; and why the others could not, by their file.

    `notes`: what the file does otherwise than a job, by its file.
    """

    text: str
    notes: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


def convert_jobs(jobs: Sequence[tuple[str, TransferSpec]]) -> Converted:
    """The jobs that copy a table from the first job's source to its target, and empty that before, as one file.

    Passwords become references to environment variables.
    """
    converted, streams = Converted(""), {}
    written: set[str] = set()
    places: tuple[dict[str, Any], dict[str, Any]] | None = None
    speeds: dict[str, int] = {}
    for name, spec in jobs:
        reason = _why_not(spec)
        if not reason:
            ends = (_place(spec.reader, "SOURCE"), _place(spec.writer, "TARGET"))
            places = places or ends
            stream, object_ = _stream_name(spec.reader), _object(spec.writer)
            if ends != places:
                reason = (
                    "it has another source or target than the first job: convert such jobs apart"
                )
            elif stream in streams:
                reason = f"another job copies {stream}, too"
            elif object_.casefold() in written:
                reason = f"another job replaces the rows of {object_}, too"
            else:
                streams[stream] = _stream(spec, object_)
                written.add(object_.casefold())
                if spec.max_dirty_rows or spec.max_dirty_fraction:
                    remark = "errorLimit is left out: a row that the target refuses parks its table"
                    converted.notes.append((name, remark))
                for unit, speed in (
                    ("rows_per_second", spec.rows_per_second),
                    ("bytes_per_second", spec.bytes_per_second),
                ):
                    if speed:
                        speeds[unit] = max(speed, speeds.get(unit, 0))
        if reason:
            converted.refused.append((name, reason))
    if places is None or not streams:
        return converted
    data: dict[str, Any] = {"source": places[0], "target": places[1], "streams": streams}
    if speeds:
        data["limit"] = speeds
    converted.text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    if any(line != one_line(line) for line in converted.text.split("\n")):
        converted.text = yaml.safe_dump(data, sort_keys=False, width=120)  # in escapes of YAML
    return converted


def _why_not(spec: TransferSpec) -> str:
    """Why a job cannot become a stream; "" = it can."""
    for end in (spec.reader, spec.writer):
        if end.spark_format or not isinstance(end.options.get("dbtable"), str):
            return f"{end.name} names no table of a database that is read or written whole"
        if end.parts or spec.targets:
            return "it has several tables or servers: convert a job for each"
    if not _object(spec.writer):
        return f"{spec.writer.options['dbtable']} has a dot or a brace in a name, which 'object' cannot say"
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
    emptied = [_EMPTIES.fullmatch(script) for script in _scripts(writer.get("startsql"))]
    whole = [match is not None and _same(match[1], str(writer["dbtable"])) for match in emptied]
    if not all(whole) or not (whole or spec.save_mode == "overwrite"):
        return (
            "it adds its rows to those that are there, or runs other SQL: a stream of mode full replaces all rows, and "
            "incremental needs update_key"
        )
    return ""


def _scripts(value: object) -> list[str]:
    if value is None:
        return []
    text = str(value)
    scripts = json.loads(text) if text.lstrip().startswith("[") else [text]
    return [str(script) for script in scripts]


def _same(one: str, other: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r'[`"\[\]]', "", text).lower()

    return plain(one) == plain(other)


def _columns(end: Endpoint) -> list[str]:
    text = end.options.get("columns")
    names = json.loads(text) if isinstance(text, str) and text.startswith("[") else text or []
    return [str(name) for name in names]


def _place(end: Endpoint, half: str) -> dict[str, Any]:
    options = {key.lower(): value for key, value in end.options.items()}
    url = str(options["url"])
    parameters = [
        parameter
        for parameter in url.partition("?")[2].split("&")
        if parameter and not _is_login(parameter.partition("=")[0])
    ]
    section = {
        "url": "?".join([without_login(url), *(["&".join(parameters)] if parameters else [])])
    }
    if "user" in options:
        section["user"] = str(options["user"])
    if "password" in options:
        section["password"] = f"${{env:{half}_PASSWORD}}"
    if half == "SOURCE":  # such as tinyInt1IsBit, without which values are others
        (secrets,) = (
            connector.secrets for connector in all_connectors() if connector.name == end.name
        )
        hidden = {name.lower() for name in secrets}
        for key, value in end.options.items():
            if key.lower() not in _OF_A_TABLE:
                section[key] = f"${{env:{half}_{key.upper()}}}" if key.lower() in hidden else value
    return section


def _is_login(parameter: str) -> bool:
    return parameter.lower() in ("user", "username") or is_secret_name(parameter)


def _parsed(end: Endpoint) -> "exp.Table | None":
    dialects: Mapping[str, str] = {
        connector.name: connector.dialect for connector in all_connectors()
    }
    return parsed_name(str(end.options["dbtable"]), dialects.get(end.name, ""))


def _stream_name(end: Endpoint) -> str:
    tree = _parsed(end)
    schema, name = ("", str(end.options["dbtable"])) if tree is None else (tree.db, tree.name)
    if not schema:
        database = (
            without_login(str(end.options.get("url", ""))).partition("?")[0].rpartition("/")[2]
        )
        schema = _DEFAULT_SCHEMA.get(end.name, database)
    return f"{schema}.{name}" if schema else name


def _object(end: Endpoint) -> str:
    """The target's table as a stream names it; "" = it cannot. PostgreSQL has names without quotes in lower case."""
    tree = _parsed(end)
    if tree is None:
        return re.sub(r'[`"]', "", str(end.options["dbtable"]))
    folds = end.name == "postgresql"
    names = [
        part.name.lower() if folds and not part.args.get("quoted") else part.name
        for part in tree.parts
    ]
    return "" if any({*".{}"} & {*name} for name in names) else ".".join(names)


def _stream(spec: TransferSpec, object_: str) -> dict[str, Any]:
    options = {key.lower(): value for key, value in spec.reader.options.items()}
    stream: dict[str, Any] = {"object": object_}
    if options.get("where"):
        stream["where"] = options["where"]
    source_options: dict[str, Any] = {}
    if columns := _columns(spec.reader):
        source_options["columns"] = columns
    if options.get("partitioncolumn"):
        source_options["partitionColumn"] = options["partitioncolumn"]
    return stream | ({"source_options": source_options} if source_options else {})
