"""The tables of a replication file as pairs to verify: each source table behind its masks, and its target."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_channel.clock import utc_now
from spark_channel.errors import ChannelError, OptionError
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.replication.config import Replication
from spark_channel.replication.masks import mask_of
from spark_channel.replication.renames import key_of
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.table_run import RunSettings, TableRun
from spark_channel.replication.tables import TableCopy, find_tables
from spark_channel.transform.transformer import prepare

__all__ = ["TablePair", "pairs_of"]


@dataclass(frozen=True)
class TablePair:
    """Two tables that hold the same rows when all of them were copied.

    `key` is None where the file and the source say none. `columns` are all that one of the two has, in lower case.
    `notes` say what the file makes of the rows; `fault`: why they cannot be compared.
    """

    name: str
    spec: TransferSpec | None
    key: tuple[str, ...] | None = None
    columns: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    fault: str = ""


def pairs_of(replication: Replication, select: Sequence[str] = ()) -> Iterator[TablePair]:
    """The tables of the file, the largest first. Opens the source, and each target when its turn comes.

    Raises:
        ChannelError: the source cannot be opened, or the file and `select` match no table.
    """
    found_tables = find_tables(replication, select)
    found_tables.check_some("verified", select)
    for copy in found_tables.copies:
        name = f"{copy.stream} -> {copy.object}"
        try:
            yield TablePair(name, None, fault=copy.fault) if copy.fault else _pair(name, copy)
        except ChannelError as error:
            yield TablePair(name, None, fault=str(error))


def _pair(name: str, copy: TableCopy) -> TablePair:
    outcome = TableOutcome(copy.stream, copy.object, copy.mode)
    run = TableRun(copy, outcome, RunSettings(), ReplicationReport("", utc_now()))
    source, target, steps = run.compared()
    reader, writer = dict(copy.reader), dict(copy.writer)
    return TablePair(
        name,
        TransferSpec(
            Endpoint(str(reader.pop("reader")), reader),
            Endpoint(str(writer.pop("writer")), writer),
            steps,
        ),
        _key(copy),
        frozenset(column.lower() for column in (*source.names, *target.names)),
        tuple(_notes(copy, source.names, prepare(steps, source).output_schema.names)),
    )


def _key(copy: TableCopy) -> tuple[str, ...] | None:
    try:
        return key_of(copy)
    except OptionError:
        return None


def _notes(copy: TableCopy, names: Sequence[str], target_names: Sequence[str]) -> Iterator[str]:
    masks = copy.options.columns or {}
    masked = []
    for name in target_names:
        mask = mask_of(masks, copy.stream, name)
        if mask is not None and mask.kind != "keep":
            masked.append(f"{name} ({mask.kind})")
    if masked:
        yield f"masked columns are compared by the mask's output: {', '.join(masked)}"
    if gone := [name for name in names if name not in target_names]:
        yield f"columns that the file leaves out are not compared: {', '.join(gone)}"
    if copy.mode == "incremental":
        yield (
            f"mode incremental copies rows with a higher {copy.options.update_key}: newer rows of the source count as "
            "missing, and rows that were removed there as extra"
        )
