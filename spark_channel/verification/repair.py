"""Writes the rows that differ to the target again, as one upsert under one claim."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from spark_channel.arrow_schema import InexactError, cast_exactly, conform
from spark_channel.connectors import Health, Read, Reader, WriteContext, load_writer
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.base.registry import find_connector
from spark_channel.errors import ChannelError, SchemaError, UnsupportedError
from spark_channel.final_errors import of_input
from spark_channel.pipeline import TransferSource
from spark_channel.planning import Endpoint, Split, deal, merge_tasks
from spark_channel.progress.report import plain_end
from spark_channel.transfers.options import JobOptions
from spark_channel.transfers.plan import open_transfer
from spark_channel.transfers.run import Transfer
from spark_channel.transform import Pipeline, prepare
from spark_channel.verification.compare import Differences, among
from spark_channel.verification.forms import Form
from spark_channel.verification.hashes import Hashes, hash_columns
from spark_channel.verification.report import RepairSettings
from spark_channel.verification.run import Verification
from spark_channel.verification.tasks import OwnKeys

__all__ = ["refuse_impossible", "repair"]

_NOT_REPEATED = frozenset(
    {
        "startsql",
        "presql",
        "postsql",
        "txn",
        "txnappid",
        "txnversion",
        "commit",
        "truncate",
        "writemode",
    }
    | {"keycolumns", "upsertkeycolumns", "maxdirtyrows", "maxdirtyfraction", "dirtyrowspath"}
    | {"replacewhere", "onschemachange"}
)
"""Options of a writer, lower-cased, that say how a whole copy is made."""
_SEVERAL_SPELLINGS = frozenset({"text, NFC", "json", "uuid"})
_DELETES = "deletes"


def repair(verification: Verification, settings: RepairSettings) -> None:
    """Write the differing rows of a verification that has run, look at them again, and put that into its report.

    Raises:
        ChannelError: writing failed; nothing was written.
    """
    report, delete = verification.report, settings.delete
    differences, left_out = _without_nulls(verification, verification.differences)
    if not len(differences):
        return
    rows = _wanted(differences, delete=delete) + verification.beyond
    if not rows:
        verification.note(
            "nothing was repaired: all differing rows are extra ones, which option 'delete' removes"
        )
        return
    if rows > settings.max_repairs:
        verification.note(
            f"nothing was repaired: {rows} rows differ, which is more than {settings.max_repairs}. "
            f"To repair them, raise option 'max_repairs' to {rows}"
        )
        return
    # A row may have come meanwhile that a delete would remove.
    differences, has_twins = verification.look_again(differences)
    if has_twins:
        verification.note(
            f"nothing was repaired: several rows of the source have one key ({', '.join(report.key)}), and an upsert "
            "keeps one of them. Name columns that identify each row with 'key'"
        )
        return
    differences, outside = _without_outside(verification, differences, delete=delete)
    left_out += outside
    if alike := verification.alike(differences.keys[differences.source_rows > 0]):
        verification.note(
            f"nothing was repaired: the target finds {alike} other rows by the keys to write, and an upsert would "
            f"change them: its key ({', '.join(verification.columns.key_names(1))}) takes values for equal that are "
            "written in different ways, as 1.0 and 1.00, or texts whose collation ignores case, accents or trailing "
            "blanks. Declare the number's digits, give the text a binary collation, or write these rows yourself"
        )
        return
    if settings.dry_run:
        rows = _wanted(differences, delete=delete)
        report.repairs = tuple(_planned(verification, differences, delete=delete))
        verification.note(f"dry run: {rows} rows would be repaired")
        _note_kept(verification, differences, delete=delete)
        return
    written = (
        _write(verification, differences, delete=delete)
        if _wanted(differences, delete=delete)
        else 0
    )
    after, _ = verification.look_again(differences)
    deleted = int(np.count_nonzero(differences.source_rows == 0)) if delete else 0
    report.repaired = {
        "upserted": written - deleted,
        "deleted": deleted,
        "differ after it": len(after),
    }
    if verification.beyond:
        verification.note(
            f"{verification.beyond} more keys differ, which were not repaired: repair again"
        )
    if not len(after):
        if not verification.beyond and not left_out:
            report.outcome = "unknown" if report.changing else "equal"
    elif delete or after.source_rows.any():
        verification.note(
            "rows differ after the repair: another program writes to a side, or the target changes what it is given"
        )
    _note_kept(verification, after, delete=delete)


def _note_kept(verification: Verification, differences: Differences, *, delete: bool) -> None:
    extra = int(np.count_nonzero(differences.source_rows == 0))
    if extra and not delete:
        verification.note(
            f"extra rows of the target stay there: {extra}. To remove them, add option 'delete'"
        )


def _wanted(differences: Differences, *, delete: bool) -> int:
    """The number of keys to write."""
    return len(differences) if delete else int(np.count_nonzero(differences.source_rows))


def _without_nulls(verification: Verification, differences: Differences) -> tuple[Differences, int]:
    """What differs, without the rows whose key holds NULL, and the number of those keys."""
    if not len(differences):
        return differences, 0
    mask = ~among(differences.keys, verification.keys.with_null())
    left_out = len(differences) - int(np.count_nonzero(mask))
    if left_out:
        verification.note(
            f"{left_out} differing rows are not repaired: their key ({', '.join(verification.report.key)}) holds NULL, "
            "by which a target finds no row, so each repair would add them. Repair them yourself, or name another key "
            "with 'key'"
        )
    return differences.take(mask), left_out


def _without_outside(
    verification: Verification, differences: Differences, *, delete: bool
) -> tuple[Differences, int]:
    """What differs, without the rows that a delete would remove though the source has them, and their number."""
    extra = differences.source_rows == 0
    if not (delete and verification.report.where and extra.any()):
        return differences, 0
    mask = np.zeros(len(differences), np.bool_)
    mask[extra] = verification.has_outside(differences.keys[extra])
    outside = int(np.count_nonzero(mask))
    if outside:
        verification.note(
            f"{outside} extra rows are not deleted: the source has their keys among the rows that 'where' leaves out. "
            "To repair them, verify without 'where'"
        )
    return differences.take(~mask), outside


def _planned(
    verification: Verification, differences: Differences, *, delete: bool
) -> Iterator[dict[str, Any]]:
    names = verification.columns.key_names(0)
    for action, chosen in (
        ("upsert", differences.source_rows > 0),
        ("delete", differences.source_rows == 0),
    ):
        if action == "upsert" or delete:
            for values in verification.keys.values(differences.keys[chosen]):
                yield {"repair": action, **dict(zip(names, values, strict=True))}


def refuse_impossible(verification: Verification, *, delete: bool) -> None:
    """Check that the target can be repaired, before its rows are read.

    Raises:
        UnsupportedError: it cannot.
    """
    target = verification.sides[1]
    label = plain_end(target.label)
    if not verification.columns.key:
        raise UnsupportedError(
            f"{label} cannot be repaired: no key says which row is which. Name columns that identify each row with "
            "'key' (for a table of a replication file: with primary_key in its stream); the target needs a unique "
            "index on them"
        )
    for position in verification.columns.key:
        form = verification.columns.forms[position]
        if form.name in _SEVERAL_SPELLINGS:
            name = verification.columns.names[position][0]
            raise UnsupportedError(
                f"{label} cannot be repaired: its key column {name!r} is compared as {form}, so that equal keys "
                "may be other values for the database, which would get a second row. Name another key with 'key'"
            )
    end = verification.job_options.spec.writer
    connector = find_connector(_named("writer", end), "writer")
    model = connector.options_class("writer")
    if not {"writemode", "keycolumns"} <= set(model.names()):
        raise UnsupportedError(
            f"{label} cannot be repaired: the {connector.name} writer does not update rows by a key. Copy the "
            "table again, or the part of it that differs, with 'where'"
        )
    if verification.columns.excluded and target.database is None:
        raise UnsupportedError(
            f"{label} cannot be repaired without columns {', '.join(verification.columns.excluded)}, since its "
            "rows are replaced as wholes. Verify all columns"
        )
    if delete and target.database is None:
        raise UnsupportedError(
            f"option 'delete' removes rows of databases only, and {label} is not one. Repair it without the "
            "option, and remove the extra rows yourself"
        )
    _rehearse(verification, delete=delete)


def _rehearse(verification: Verification, *, delete: bool) -> None:
    """Check that the target takes the rows of a repair: its unique key, its columns, the role's rights.

    Raises:
        ChannelError: it does not.
    """
    written = _columns_of(verification, delete=delete)
    writer, _ = load_writer(_named("writer", _writing_job(verification, delete=delete).spec.writer))
    try:
        writer.rehearse(WriteContext("rehearsal"), written)
    except ChannelError as error:
        label = plain_end(verification.sides[1].label)
        refused = type(error)(f"{label} cannot be repaired: {error}")
        raise of_input(refused, is_of_input=error.is_of_input) from error


def _columns_of(verification: Verification, *, delete: bool) -> pa.Schema:
    """The columns of the rows that a repair writes; with `delete` they are a change feed."""
    source, target = verification.sides
    every = source.steps.output_schema
    pairs = verification.columns.names
    compared = pa.schema(
        [every.field(source_name) for source_name, name in pairs if name not in target.generated]
    )
    if not delete:
        return compared
    fields = [field.with_nullable(True) for field in compared]
    return pa.schema([*fields, pa.field(OPERATION, pa.string())])


def _named(half: str, end: Endpoint) -> dict[str, Any]:
    return {**({half: end.name} if end.name else {}), **end.options}


def _write(verification: Verification, differences: Differences, *, delete: bool) -> int:
    """Write the rows, and return how many there were."""
    source, job = verification.sides[0], _writing_job(verification, delete=delete)
    columns = verification.columns
    whole = verification.splits_of_keys(differences.keys[differences.source_rows > 0])[0]
    with ExitStack() as stack:
        transfer = open_transfer(job, verification.parallelism, stack)
        picked = PickedReader(
            transfer.sources[0].reader,
            source.steps,
            [pair[0] for pair in columns.names if pair[1] not in verification.sides[1].generated],
            columns.key_names(0),
            [columns.forms[position] for position in columns.key],
            differences.keys[differences.source_rows > 0],
            gone=_gone(verification, differences) if delete else None,
        )
        splits = [*whole, *([Split({"kind": _DELETES})] if delete else [])]
        picked_source = TransferSource(picked, prepare((), picked.written))
        tasks = merge_tasks([TransferSource.wrap(0, split) for split in splits])
        channels = verification.parallelism
        plan = deal(job.spec, tasks, parallelism=channels, most=channels)
        return (
            Transfer(verification.engine, replace(transfer, sources=(picked_source,), plan=plan))
            .run()
            .rows
        )


def _writing_job(verification: Verification, *, delete: bool) -> JobOptions:
    """The job that writes rows by their key, into the table without changing its columns."""
    job, source, target = (
        verification.job_options,
        verification.sides[0],
        verification.job_options.spec.writer,
    )
    model = find_connector(_named("writer", target), "writer").options_class("writer")
    option_names = {*model.names(), *(name.lower() for name in model.aliases)} - _NOT_REPEATED
    options = {
        **{name: value for name, value in target.options.items() if name.lower() in option_names},
        "writeMode": "apply" if delete else "upsert",
        "keyColumns": list(verification.columns.key_names(0)),
    }
    job_settings = {
        name: value for name, value in job.job.items() if name.lower() not in _NOT_REPEATED
    }
    reading = {
        name: value for name, value in source.end.options.items() if name.lower() != "snapshot"
    }
    spec = replace(
        job.spec,
        reader=replace(source.end, options=reading),
        writer=replace(target, options=options, parts=()),
        transformers=(),
        save_mode="append",
        targets=(),
    )
    return JobOptions(spec, job_settings)


def _gone(verification: Verification, differences: Differences) -> pa.Table:
    """The keys that the target alone has, as the source's columns."""
    columns = verification.columns
    rows = verification.keys.table(1, differences.keys[differences.source_rows == 0])
    generated = verification.sides[1].generated
    fields = [
        verification.sides[0].schema.field(pair[0])
        for pair in columns.names
        if pair[1] not in generated
    ]
    schema = pa.schema(fields)
    target_names = dict(zip(columns.key_names(0), columns.key_names(1), strict=True))
    return pa.table(
        [
            _key_values(rows[target_names[field.name]], field)
            if field.name in target_names
            else pa.nulls(len(rows), field.type)
            for field in schema
        ],
        names=schema.names,
    )


def _key_values(values: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """
    Raises:
        SchemaError: a key that the source's type does not hold: a repair would delete another row, or none.
    """
    try:
        parts = values.chunks or [pa.array([], values.type)]
        return cast_exactly(pa.concat_arrays(parts), field.type, declared=True)
    except InexactError as error:
        raise SchemaError(
            f"the target has a row that the source lacks, and its key cannot be written in the source's column "
            f"{field.name!r}: {error}. Delete such rows by hand, then repair again"
        ) from error


class PickedReader(Reader):
    """The rows of another reader, behind a job's steps, that have some keys: of `names`, the compared columns.

    With `gone` they are a change feed, and those keys are its deletes.
    """

    def __init__(
        self,
        inner: Reader,
        steps: Pipeline,
        names: Sequence[str],
        key: Sequence[str],
        forms: Sequence[Form],
        keys: Hashes,
        *,
        gone: pa.Table | None,
    ) -> None:
        super().__init__(inner.options)
        self.fetch_size = inner.fetch_size
        self._inner, self._steps, self._gone = inner, steps, gone
        self._names = list(names)
        self._key, self._forms, self._keys = tuple(key), tuple(forms), keys
        self._own = OwnKeys(inner, self._key, self._forms)

    @property
    def written(self) -> pa.Schema:
        """The schema of the rows."""
        compared = pa.schema([self._steps.output_schema.field(name) for name in self._names])
        if self._gone is None:
            return compared
        fields = [field.with_nullable(True) for field in compared]
        return pa.schema([*fields, pa.field(OPERATION, pa.string())])

    def schema(self) -> pa.Schema:
        return self.written

    def split(self, advice: int) -> list[Split]:
        raise NotImplementedError("the splits are those of the keys")

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with self._inner.reading() as read:
            yield partial(self._picked, read)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self.reading() as read:
            yield from read(split)

    def _picked(self, read: Read, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params.get("kind") == _DELETES and self._gone is not None:
            for batch in self._gone.to_batches():
                yield self._marked(batch, "delete")
            return
        for batch in self._own.rows(read, split):
            fitting = self._steps.run(conform(batch, self._steps.schema)).batch
            hashes = hash_columns([fitting.column(name) for name in self._key], self._forms)
            chosen = fitting.select(self._names).filter(pa.array(among(hashes, self._keys)))
            if chosen.num_rows:
                yield chosen if self._gone is None else self._marked(chosen, "upsert")

    def _marked(self, batch: pa.RecordBatch, operation: str) -> pa.RecordBatch:
        words = pa.array([operation] * batch.num_rows, pa.string())
        return pa.RecordBatch.from_arrays([*batch.columns, words], schema=self.written)

    def health(self) -> Health | None:
        return self._inner.health()

    def stored(self) -> Stored | None:
        return self._inner.stored()

    def resource_mark(self, split: Split) -> str | None:
        return None if split.params.get("kind") == _DELETES else self._inner.resource_mark(split)
