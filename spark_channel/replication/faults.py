"""The faults of a replication's file that are found without a connection."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from spark_channel.errors import ChannelError, JobFileError, MissingPackageError, OptionError
from spark_channel.option_types import without_references
from spark_channel.replication.config import (
    Place,
    Replication,
    StreamOptions,
    load_replication,
    over,
)
from spark_channel.replication.tables import batch_options, connector_of, ends_fault
from spark_channel.replication.tunnels import check_publication

__all__ = ["check_replication"]

_Half = Literal["reader", "writer"]


def check_replication(path: Path) -> tuple[list[str], list[str]]:
    """Every fault of the file, and the packages that it needs and this Python does not have."""
    try:
        replication = load_replication(path)
    except JobFileError as error:
        return [str(error), *error.others], []
    faults: list[str] = []
    needs: list[str] = []
    ends: tuple[tuple[str, _Half, Place], ...] = (
        ("source", "reader", replication.source),
        ("target", "writer", replication.target),
    )
    for name, half, end in ends:
        try:
            _check_options(replication, name, half, end)
        except MissingPackageError as error:
            needs.append(f"{name}: {error}")
        except ChannelError as error:
            faults.append(f"{path}: {error}")
    faults += [f"{path}: {fault}" for fault in _stream_faults(replication)]
    modes = {options.mode for options in (replication.defaults, *replication.streams.values())}
    if "full_then_changes" in modes and not faults and not needs:
        try:
            check_publication(replication)
        except OptionError as error:
            faults.append(f"{path}: {error}")
    return faults, needs


def _check_options(replication: Replication, name: str, half: _Half, end: Place) -> None:
    """Check that the options of one end, also with those of each stream, are options of its connector."""
    connector = connector_of(end, half)
    whole: dict[str, Any] = without_references(batch_options(end))
    names = connector.options_class(half).names()
    if "dbtable" in names:
        whole["dbtable"] = "no.table"
    if half == "reader" and "dbtable" not in names:
        raise JobFileError(
            f"{name}: connector {connector.name!r} has no catalog of tables: replicate reads databases, and `copy` "
            "one folder or file"
        )
    options_key = "source_options" if half == "reader" else "target_options"
    entries = {"defaults": replication.defaults}
    entries |= {f"streams.'{key}'": section for key, section in replication.streams.items()}
    tried: list[tuple[str, dict[str, Any]]] = [(name, {})]
    tried += [
        (f"{key}.{options_key}", options)
        for key, section in entries.items()
        if (options := getattr(section, options_key))
    ]
    for where, extra in tried:
        try:
            options = {**whole, **without_references(extra)}
            connector.reader_with(options) if half == "reader" else connector.writer_with(options)
        except MissingPackageError:
            raise
        except ChannelError as error:
            raise JobFileError(f"{where}: {error}") from error


def _stream_faults(replication: Replication) -> list[str]:
    """What is missing in a stream, or too much for the source and the target, whichever tables it matches."""
    faults = []
    for key, options in replication.streams.items():
        merged = over(replication.defaults, options)
        with suppress(JobFileError):  # an unknown connector has its own fault
            name, fault = ends_fault(replication, merged)
            if fault and not merged.disabled:
                is_own = getattr(options, name) is not None
                faults.append(
                    f"streams.'{key}'.{name}: {fault}" if is_own else f"defaults.{name}: {fault}"
                )
        update_key = options.update_key or replication.defaults.update_key
        mode = options.mode or replication.defaults.mode
        if mode == "incremental" and update_key is None and not _may_come(replication, key):
            faults.append(
                f"streams.'{key}' has mode incremental and no update_key; it takes a column's name"
            )
    return list(dict.fromkeys(faults))


def _may_come(replication: Replication, key: str) -> bool:
    """Whether another pattern may give the tables of this one their update_key."""
    others: list[StreamOptions] = [
        options for name, options in replication.streams.items() if name != key
    ]
    return any(other.update_key is not None for other in others)
