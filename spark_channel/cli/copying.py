"""copy: one table, folder or file at a url, copied to another.

No module here is called `copy`: spark-submit puts this folder before the standard library.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from spark_channel.cli.endpoints import Half, add_option, parse_options, parse_place
from spark_channel.cli.plan import show_plan, without_pandas
from spark_channel.cli.run import JobRun, RunOptions, carry_out_jobs
from spark_channel.cli.text import say
from spark_channel.connectors.base.open_sessions import cancel_all
from spark_channel.connectors.base.overlap import MOST_COUNTED
from spark_channel.connectors.base.registry import (
    describe,
    find_connector,
    has_third_parties,
    is_database,
    load_writer,
)
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.sql.definition import DEFINING
from spark_channel.datax import LoadedJob
from spark_channel.errors import ChannelError, OptionError
from spark_channel.option_types import parse_transaction
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.planning.transfer import SaveMode
from spark_channel.progress.report import many
from spark_channel.signals import ending_on_sigterm

__all__ = ["CopyOptions", "copy"]


_OF_PLACE = frozenset(
    ["url", "path", "dbtable", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey"]
)
"""Options that name a database, and who logs in."""


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """What a user gave beside the two places. `options` are texts such as `reader.nullValue=NA`."""

    options: Sequence[str] = ()
    where: str | None = None
    columns: str | None = None
    mode: str = "append"
    txn: str | None = None
    dry_run: bool = False
    of_job: Mapping[str, Any] = field(default_factory=dict)
    """Options of the whole copy by the names of format options, such as `rowsPerSecond`; None = not given."""


def copy(source: str, target: str, options: CopyOptions, run: RunOptions) -> int:
    """Copy what is at `source` to `target`, and print the result. Returns the exit code.

    Raises:
        ChannelError: a place or an option makes no sense, or the copy failed.
    """
    if not has_third_parties():
        without_pandas()
    options_by_half = parse_options(options.options)
    for name, value in (("where", options.where), ("columns", options.columns)):
        if value is not None:
            add_option(options_by_half["reader"], name, value)
    for name, value in options.of_job.items():
        if value is not None and name != "channels":
            add_option(options_by_half["writer"], name, value)
    if options.txn is not None:
        name, version = parse_transaction(options.txn, "--txn")
        add_option(options_by_half["writer"], "txn", f"{name}:{version}")
    _check_choice("--mode", options.mode, get_args(SaveMode))
    to = parse_place("writer", target, options_by_half["writer"])
    _check_schema(options.of_job.get("createTable"), to)
    to = _with_keys(to)
    spec = TransferSpec(
        parse_place("reader", source, options_by_half["reader"]),
        to,
        save_mode=cast(SaveMode, options.mode),
        channels=options.of_job.get("channels"),
    )
    loaded = LoadedJob((spec,), name="copy")
    if options.dry_run:
        on_spark = run.engine == "spark" or bool(run.conf)
        show_plan(loaded, run.master, on_spark=on_spark)
        return 0
    label = f"{_label(spec.reader, 'reader')} -> {_label(spec.writer, 'writer')}"
    with keeping_sessions():  # the job writes by the session that has counted
        with ending_on_sigterm(cancel_all):  # another session may have locked the table
            before = _rows_before(spec.writer) if options.mode == "append" else None
        outcome = carry_out_jobs([JobRun(Path(label), "copy", loaded)], run)
    if before and not outcome.code and outcome.rows_written:
        be = "was" if before == 1 else "were"
        prefix = "more than " if before > MOST_COUNTED else ""
        rows_before = f"{prefix}{many(min(before, MOST_COUNTED), 'row')}"
        say(f"added to {rows_before} that {be} there", error=True)
    return outcome.code


def _rows_before(end: Endpoint) -> int | None:
    """How many rows a table or a folder has, counted up to a bound; None where that is not known."""
    options = {key: value for key, value in end.options.items() if key.lower() in _OF_PLACE}
    if is_database(end.name) and not any(key.lower() == "dbtable" for key in options):
        return None
    if any(key.lower() == "writemode" and value != "insert" for key, value in end.options.items()):
        return None  # rows with a key that is there are not added
    try:
        writer, _ = load_writer({**options, "writer": end.name})
        return writer.existing_rows()
    except ChannelError:  # the server does not answer, or the login may not look; the job says so
        return None


def _check_choice(option: str, got: str, choices: Sequence[str]) -> None:
    if got not in choices:
        takes = ", ".join(choices)
        raise OptionError(
            f"option {option!r} got {got!r}; it takes one of: {takes}",
            option=option,
            got=got,
            takes=takes,
        )


def _check_schema(level: str | None, target: Endpoint) -> None:
    """Check `--schema`, by the name that was typed: what is behind it is an option of the target."""
    if level is None:
        return
    _check_choice("--schema", level, ("columns", "keys", "full"))
    connector = find_connector({**target.options, "writer": target.name}, "writer")
    if "createtable" not in connector.options_class("writer").names():
        raise OptionError(
            "option '--schema' is for tables of databases, Delta, Iceberg and Parquet, and the target is "
            f"{connector.name}: omit it",
            option="--schema",
            got=level,
        )


def _with_keys(target: Endpoint) -> Endpoint:
    """The target, whose new table gets the keys of its source unless an option says what it gets."""
    connector = find_connector({**target.options, "writer": target.name}, "writer")
    if connector.name not in DEFINING or "createtable" in map(str.lower, target.options):
        return target
    return replace(target, options={**target.options, "createTable": "auto"})


def _label(end: Endpoint, half: Half) -> str:
    """The place in a few words, without secrets."""
    connector = find_connector({**end.options, half: end.name}, half)
    options, _ = connector.options_class(half).parse(end.options, connector=connector.name)
    return f"{connector.name} {describe(options)}".strip()
