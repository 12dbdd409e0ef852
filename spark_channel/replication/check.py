"""Judges the file of a replication without a connection."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from spark_channel.errors import ChannelError, JobFileError, MissingPackageError
from spark_channel.option_types import without_references
from spark_channel.replication.config import (
    Place,
    Replication,
    StreamOptions,
    load_replication,
    over,
)
from spark_channel.replication.tables import batch_options, connector_of, ends_fault

__all__ = ["check_replication"]

_Half = Literal["reader", "writer"]


def check_replication(path: Path) -> tuple[list[str], list[str]]:
    """Every fault of the file, and the packages that it needs and this Python does not have."""
    try:
        found = load_replication(path)
    except JobFileError as error:
        return [str(error), *error.others], []
    faults: list[str] = []
    needs: list[str] = []
    ends: tuple[tuple[str, _Half, Place], ...] = (
        ("source", "reader", found.source),
        ("target", "writer", found.target),
    )
    for name, half, place in ends:
        try:
            _hold_options(found, name, half, place)
        except MissingPackageError as error:
            needs.append(f"{name}: {error}")
        except ChannelError as error:
            faults.append(f"{path}: {error}")
    faults += [f"{path}: {fault}" for fault in _stream_faults(found)]
    return faults, needs


def _hold_options(found: Replication, name: str, half: _Half, place: Place) -> None:
    """Hold the options of one end, also with those of each stream, to be options of its connector."""
    connector = connector_of(place, half)
    whole: dict[str, Any] = without_references(batch_options(place))
    names = connector.options_class(half).names()
    if "dbtable" in names:
        whole["dbtable"] = "no.table"
    if half == "reader" and "dbtable" not in names:
        raise JobFileError(
            f"{name}: connector {connector.name!r} has no catalog of tables: replicate reads databases, and `copy` "
            "one folder or file"
        )
    own = "source_options" if half == "reader" else "target_options"
    entries = {"defaults": found.defaults}
    entries |= {f"streams.'{key}'": each for key, each in found.streams.items()}
    tried: list[tuple[str, dict[str, Any]]] = [(name, {})]
    tried += [
        (f"{key}.{own}", given) for key, each in entries.items() if (given := getattr(each, own))
    ]
    for where, more in tried:
        try:
            given = {**whole, **without_references(more)}
            connector.reader_with(given) if half == "reader" else connector.writer_with(given)
        except MissingPackageError:
            raise
        except ChannelError as error:
            raise JobFileError(f"{where}: {error}") from error


def _stream_faults(found: Replication) -> list[str]:
    """What is missing in a stream, or too much for the source and the target, whichever tables it matches."""
    faults = []
    for key, own in found.streams.items():
        merged = over(found.defaults, own)
        with suppress(JobFileError):  # an unknown connector has its own fault
            name, why = ends_fault(found, merged)
            if why and not merged.disabled:
                given = getattr(own, name) is not None
                faults.append(
                    f"streams.'{key}'.{name}: {why}" if given else f"defaults.{name}: {why}"
                )
        update_key = own.update_key or found.defaults.update_key
        mode = own.mode or found.defaults.mode
        if mode == "incremental" and update_key is None and not _may_come(found, key):
            faults.append(
                f"streams.'{key}' has mode incremental and no update_key; it takes a column's name"
            )
    return list(dict.fromkeys(faults))


def _may_come(found: Replication, key: str) -> bool:
    """Whether another pattern may give the tables of this one their update_key."""
    others: list[StreamOptions] = [each for name, each in found.streams.items() if name != key]
    return any(each.update_key is not None for each in others)
