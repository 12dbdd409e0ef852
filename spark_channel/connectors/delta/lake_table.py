"""A Delta table, with the interface that the writers of lakehouse tables use."""

import json
import math
import os
import posixpath
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.claims import Claim, Identity, unless_replaced
from spark_channel.connectors.base.definition import with_notes
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim, kept_of, numbers
from spark_channel.connectors.delta.claims import (
    OURS,
    OVERWRITES,
    Versions,
    about,
    actions_of,
    app_id,
    find_claim,
    forgetting,
    generation_app_id,
    was_written_here,
)
from spark_channel.connectors.delta.entry import entry, is_kept
from spark_channel.connectors.delta.features import (
    check_deletion_vectors,
    check_readable,
    check_writable,
)
from spark_channel.connectors.delta.options import Table
from spark_channel.connectors.delta.table import (
    commits_removals,
    explained,
    open_table,
    place_of,
    settings_of,
    uri_of,
    written_columns,
)
from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.filesystem import LOG, Location
from spark_channel.connectors.files.foreign_files import check_may_write
from spark_channel.connectors.files.literals import exact
from spark_channel.connectors.files.partition_columns import partition_value
from spark_channel.connectors.files.store import UNFINISHED, ObjectStore, Store, store_of
from spark_channel.connectors.lake.columns import check_partition_column, with_blanks
from spark_channel.connectors.lake.table import (
    Change,
    LakeTable,
    NewFile,
    Partition,
    TableFile,
    TableState,
)
from spark_channel.errors import CommitError, TargetError, UnsupportedError

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
from spark_channel.connectors.delta.columns import check_local_times, planned

__all__ = ["DeltaLake", "DeltaState", "file_path", "logged_partition", "table_files"]

_HISTORY = 200
"""So many of the newest commits are looked through for the name of a claim's owner."""
_MOST_LISTED = 10_000
"""So many of them, to list claims."""
_LOST_RACE = re.compile(r"Failed to commit transaction: \d+\s*\Z")
_EXISTS = "already exists"
_CONDITIONAL: set[tuple[str, str]] = set()
"""Stores and buckets that this process has seen refuse the second of two conditional puts."""

_SAME = {"s3a": "s3", "s3n": "s3"}


class DeltaLake(LakeTable):
    """The table that the options name."""

    data = "spark-channel"
    merged_files = "stay until VACUUM removes them"

    def __init__(self, options: Table) -> None:
        self._options = options
        self._place = place_of(options)
        self.shown = self._place.show()
        self.store = store_of(self._place)
        self.base = self._place.path

    def open(self) -> "DeltaState | None":
        from deltalake.exceptions import TableNotFoundError

        with explained(self.shown, TargetError):
            try:
                table = open_table(self._options, self._place)
            except TableNotFoundError:
                return None
            check_readable(table, self.shown)
            return DeltaState(table, self.store, self.base, self.shown)

    def check_commits(self) -> None:
        """deltalake relies on conditional puts, and does not try whether the store has them."""
        bucket = (self._place.root, self.base.partition("/")[0])
        if isinstance(self.store, ObjectStore) and bucket not in _CONDITIONAL:
            name = f"{UNFINISHED}{os.getpid()}-{uuid.uuid4().hex}"
            self.store.check_put_new(posixpath.join(self.base, LOG, name))
            _CONDITIONAL.add(bucket)

    def check_may_write(self) -> None:
        check_may_write(self._place)

    def planned_columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        columns = planned(schema)
        check_local_times(columns, self.shown)
        for name in partition_by:
            check_partition_column(columns.field(name), self.shown)
        if len(columns) and len(partition_by) == len(columns):
            raise TargetError(
                f"every column of {self.shown} would be a partition column; omit one from partitionBy"
            )
        return columns

    def create(self, columns: pa.Schema, partition_by: Sequence[str], change: Change) -> bool:
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import create_table_with_add_actions

        settings, notes = settings_of(self._place, self._options), change.notes
        with explained(self.shown, TargetError):
            try:
                create_table_with_add_actions(
                    uri_of(self._place),
                    # A note of the key's columns: deltalake takes no property of others.
                    Schema.from_arrow(with_notes(columns, notes.key, dict(notes.comments))),
                    [_add(file, changes=True) for file in change.added],
                    mode="error",
                    partition_by=list(partition_by),
                    description=notes.comment,
                    storage_options=settings,
                    commit_properties=_commit_properties(change, None),
                )
            except DeltaError as error:
                if _EXISTS in str(error) or _LOST_RACE.search(str(error)):
                    return False
                raise
        return True


class DeltaState(TableState):
    """One version. It is loaded once, and not refreshed: a commit is of the next version, or not written."""

    def __init__(self, table: "DeltaTable", store: Store, base: str, label: str) -> None:
        self._table, self._store, self._base, self._shown = table, store, base, label
        self.columns = written_columns(table)
        self.partition_columns = tuple(table.metadata().partition_columns)
        self._history: list[dict[str, Any]] | None = None
        self._bounds: dict[str, dict[str, list[Any]]] | None = None
        # Each question reads the whole checkpoint.
        self.versions = cache(table.transaction_version)

    def claim(self, identity: Identity, job: str) -> Claim | None:
        claim = self.own_claim(identity, job)
        return self._of_another_writer(identity) if claim is None else claim

    def own_claim(self, identity: Identity, job: str, *, brief: bool = False) -> Claim | None:
        versions = self.versions
        named = (lambda *_: None) if brief else self._named
        claim = find_claim(identity, job, versions, named)
        if claim is None or identity.kind != "stream":
            return claim
        generation = versions(generation_app_id(identity))
        return unless_replaced(replace(claim, generation=generation), self.overwrites)

    def kept(self, target: str, names: Sequence[ClaimName]) -> list[KeptClaim]:
        """Those that the newest commits name, and those of `names`: the log itself has digests of names."""
        newest: dict[str, dict[str, Any]] = {}
        for note in self._said(_MOST_LISTED):
            if "kind" in note:  # commits of earlier versions name it for people alone
                newest.setdefault(str(note["claim"]), note)
        identities = {
            key: Identity(target, note["kind"], note["name"], note.get("txnVersion"))
            for key, note in newest.items()
        }
        for name in names:
            for version in numbers(name.versions) if name.versions else (None,):
                identity = Identity(target, name.kind, name.name, version)  # type: ignore[arg-type] # checked there
                if name.kind != "txn" or version is not None:
                    identities.setdefault(app_id(identity), identity)
            if len(identities) > 2 * _MOST_LISTED:
                raise TargetError(
                    f"{name.kind}:{name.name} has more than {_MOST_LISTED} versions, and a Delta log is asked for each "
                    "of them: name fewer at a time"
                )
        now = utc_now().isoformat(timespec="seconds")
        claims = []
        for key, identity in identities.items():
            claim = find_claim(identity, "", self.versions, self._named)
            if claim is None or not (
                claim.owner or claim.last is not None or claim.state != "open"
            ):
                continue
            kept_claim = kept_of(claim, key, now)
            at = kept_claim.at if kept_claim.at[:1].isdigit() else ""
            claims.append(replace(kept_claim, at=at))
        return sorted(claims, key=lambda claim: claim.at)

    @property
    def identity(self) -> str:
        return str(self._table.metadata().id)

    @property
    def overwrites(self) -> int:
        return int(self.versions(OVERWRITES) or 0)

    def _of_another_writer(self, identity: Identity) -> Claim | None:
        """The transaction pair as Delta's own writers keep it: the last version of each app id.

        deltalake itself holds no commit against it: findings/delta-app-transactions-repeat.sh

        Raises:
            TargetError: a later version was written by another writer, so that this one may have been, too.
        """
        if identity.kind != "txn" or identity.version is None:
            return None
        last = self.versions(identity.name)
        if last is None or last < identity.version:
            return None
        if last == identity.version:
            at = "an unknown time"
            return Claim(identity, "another writer of Delta", 1, "published", published_at=at)
        if was_written_here(replace(identity, version=last), self.versions):
            return None  # it was written here, where each version is known
        raise TargetError(
            f"option 'txn' got {identity.name}:{identity.version}, and another writer has written version {last} "
            f"of that name to {self._shown}: whether {identity.version} was written before "
            f"cannot be known. Use a version above {last}, or another name"
        )

    def _named(self, identity: Identity, version: int | None) -> dict[str, Any] | None:
        fields: dict[str, Any] = {"claim": app_id(identity)}
        if version is not None:
            fields["version"] = version
        notes = self._said(_HISTORY)
        return next(
            (one for one in notes if {name: one.get(name) for name in fields} == fields), None
        )

    def _said(self, commits: int) -> list[dict[str, Any]]:
        """What the newest commits say of their claims, the newest first."""
        history = self._history
        if history is None or commits > _HISTORY:
            try:
                history = self._table.history(commits)
            except Exception:
                history = []
            if commits == _HISTORY:
                self._history = history
        return [commit[OURS] for commit in history if isinstance(commit.get(OURS), dict)]

    def check_writable(self, *, removes: bool) -> None:
        check_writable(self._table, self._shown, removes=removes)
        if removes:
            self.files()  # which looks for deletion vectors, and for files outside of the table

    def files(self) -> list[TableFile]:
        check_deletion_vectors(self._table, self._shown)
        return table_files(self._table, self._base, self._shown)

    def kind(self, file: TableFile) -> Partition:
        return file.partition

    def is_of(self, file: TableFile, new: NewFile) -> bool:
        return dict(new.partition) == dict(file.partition)

    def with_bounds(self, new: NewFile, sources: Sequence[TableFile]) -> NewFile:
        """Of numbers with a fraction and of times, whose bounds data files do not have here: those of the sources."""
        if self._bounds is None:
            self._bounds = logged_bounds(self._table, self.columns)
        of = [self._bounds.get(source.handle, {}) for source in sources]
        statistics = dict(new.statistics)
        for name in set.intersection(*map(set, of)):
            lows, highs, nulls = zip(*(bounds[name] for bounds in of), strict=True)
            statistics[name] = [_bound(min(lows)), _bound(max(highs)), sum(nulls)]
        return replace(new, statistics=statistics)

    def ranges(self, file: TableFile, names: Collection[str]) -> dict[str, ValueRange]:
        ranges = {}
        for name, text in file.partition:
            if name in names:
                kind = self.columns.field(name).type
                stored = partition_value(name, text, kind)
                value = with_blanks(pa.array([stored], kind), self.columns.field(name))[0].as_py()
                with suppress(ValueError, TypeError):
                    rank = None if value is None else exact(value, kind)
                    ranges[name] = ValueRange(rank, rank, int(value is None), 1)
        return ranges

    def commit(self, change: Change) -> bool:
        changes = change.operation != "compact"
        added = [_add(file, changes=changes) for file in change.added]
        properties = _commit_properties(change, self.versions)
        # An overwrite lists nothing: deltalake removes every file of this version.
        whole = change.operation == "overwrite"
        if not all(is_kept(file.handle) for file in change.removed) or (
            change.removed and not whole and not commits_removals()
        ):
            version = self._table.version() + 1
            path = posixpath.join(self._base, "_delta_log", f"{version:020d}.json")
            return self._store.put_new(
                path, entry(change, added, properties, self.partition_columns)
            )
        removed = [] if whole else [_remove(file, changes=changes) for file in change.removed]
        with _committing(self._shown) as outcome:
            self._table.create_write_transaction(
                [*added, *removed],
                "overwrite" if whole else "append",
                self._table.schema(),  # with the notes of its columns, such as comments
                list(self.partition_columns),
                commit_properties=properties,
            )
        return outcome == []

    def retyped(self, column: pa.Field, rows: pa.DataType) -> str:
        return (
            "write the table again in Spark with the column cast (mode overwrite, overwriteSchema=true), since "
            "deltalake changes no type of a column"
        )

    def planned_new(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        columns = planned(pa.schema(fields))
        if "timestampNtz" not in (self._table.protocol().reader_features or ()):
            check_local_times(columns, self._shown)
        return list(columns)

    def add_columns(self, fields: Sequence[pa.Field], change: Change) -> bool:
        from deltalake import Field, Schema

        # Nothing of the claim changes; a commit is of the next version only, so the claim still holds in it.
        properties = _commit_properties(change, None, claim=False)
        new: list[Field] = list(Schema.from_arrow(pa.schema(fields)).fields)
        with _committing(self._shown) as outcome:
            self._table.alter.add_columns(new, commit_properties=properties)
        return outcome == []


@contextmanager
def _committing(label: str) -> Iterator[list[str]]:
    """Gives a list that is not empty afterwards if another commit was first."""
    from deltalake.exceptions import CommitFailedError

    outcome: list[str] = []
    with explained(label, CommitError):
        try:
            yield outcome
        except CommitFailedError as error:
            if not _LOST_RACE.search(str(error)):
                raise
            outcome.append(str(error))


def _commit_properties(
    change: Change, versions: Versions | None, *, claim: bool = True
) -> "CommitProperties":
    """Without retries: deltalake would write a later version, for which nothing was decided."""
    from deltalake import CommitProperties, Transaction

    claim_made, now = change.claim, int(utc_now().timestamp() * 1000)
    identity = claim_made.identity
    versions = versions or (lambda _app: None)
    actions = actions_of(claim_made, versions) if claim else {}
    actions |= forgetting(change.forgotten, identity.target, versions)
    if claim and change.operation == "overwrite":
        actions[OVERWRITES] = (versions(OVERWRITES) or 0) + 1
    if (
        claim
        and identity.kind == "txn"
        and identity.version is not None
        and claim_made.state == "published"
    ):
        last = versions(identity.name)
        if last is None or last < identity.version:
            actions[identity.name] = identity.version  # as Delta's own writers do
    transactions = [Transaction(name, version, now) for name, version in actions.items()]
    note = {OURS: {**about(claim_made, change.job), "operation": change.operation}}
    return CommitProperties(note, max_commit_retries=0, app_transactions=transactions)


def _add(file: NewFile, *, changes: bool) -> "AddAction":
    from deltalake.transaction import AddAction

    with_nulls = {name: values for name, values in file.statistics.items() if values[2] is not None}
    statistics = {
        "numRecords": file.rows,
        "minValues": {name: low for name, (low, _, _) in with_nulls.items() if low is not None},
        "maxValues": {name: high for name, (_, high, _) in with_nulls.items() if high is not None},
        "nullCount": {name: nulls for name, (_, _, nulls) in with_nulls.items()},
    }
    return AddAction(
        file.path,
        file.size,
        dict(file.partition),
        int(utc_now().timestamp() * 1000),
        changes,
        json.dumps(statistics),
    )


def _remove(file: TableFile, *, changes: bool) -> "RemoveAction":
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        unquote(file.handle),
        changes,
        int(utc_now().timestamp() * 1000),
        size=file.size,
        partition_values=dict(file.partition),
    )


def table_files(
    table: "DeltaTable", base: str, label: str, outside: Location | None = None
) -> list[TableFile]:
    """Every data file of the version. `outside`: see `file_path`.

    Raises:
        UnsupportedError: see `file_path`.
    """
    actions = pa.table(table.get_add_actions())
    parts = actions.column("partition").to_pylist() if "partition" in actions.column_names else None
    columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")]
    files = []
    for number, (path, size, rows) in enumerate(zip(*columns, strict=True)):
        partition = _partition({} if parts is None else parts[number] or {})
        full_path = file_path(base, path, label, outside)
        files.append(TableFile(full_path, size, partition, path, rows))
    return files


def logged_bounds(table: "DeltaTable", columns: pa.Schema) -> dict[str, dict[str, list[Any]]]:
    """By the path of a file and a column: the smallest and the largest number with a fraction, or time, and the NULLs.

    A column of a file without one of them is left out.
    """
    actions = pa.table(table.get_add_actions()).combine_chunks()
    paths = actions.column("path").to_pylist()
    bounds_by_path: dict[str, dict[str, list[Any]]] = {path: {} for path in paths}
    if not {"min", "max", "null_count"} <= set(actions.column_names):
        return bounds_by_path
    groups = [_inner(actions, name) for name in ("min", "max", "null_count")]
    for field in columns:
        if not (pa.types.is_floating(field.type) or pa.types.is_timestamp(field.type)):
            continue
        if any(field.name not in group for group in groups):
            continue
        values = [group[field.name].to_pylist() for group in groups]
        for path, *bounds in zip(paths, *values, strict=True):
            if None not in bounds and all(map(_is_finite, bounds)):
                bounds_by_path[path][field.name] = bounds
    return bounds_by_path


def _inner(actions: pa.Table, name: str) -> dict[str, pa.Array]:
    column = actions.column(name)
    if not pa.types.is_struct(column.type):
        return {}
    parts = pa.chunked_array(column.chunks, column.type).combine_chunks().flatten()
    return dict(zip((field.name for field in column.type), parts, strict=True))


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _bound(value: Any) -> Any:
    """As a log has it: times with the digits that they have there."""
    if not isinstance(value, datetime):
        return value
    digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
    text = value.replace(tzinfo=None).isoformat(timespec=digits)
    return text if value.tzinfo is None else f"{text}Z"


def file_path(base: str, path: str, label: str, outside: Location | None = None) -> str:
    """Where the file is that the log names `path`. `outside`: the table's place, if its files may be elsewhere.

    Raises:
        UnsupportedError: outside of the table's directory, such as in a shallow clone, or by a log that was edited.
    """
    plain = unquote(path)
    inside = posixpath.normpath(plain)
    if urlsplit(path).scheme or inside.startswith("/") or inside.split("/")[0] == "..":
        elsewhere = None if outside is None else _elsewhere(base, path, outside)
        if elsewhere is not None:
            return elsewhere
        how = (
            "set option 'externalAccess' of a read to true, if you trust who writes the table"
            if outside is None
            else "its store is another one than the table's"
        )
        raise UnsupportedError(
            f"{label} names the file {path}, which is outside its directory, as a shallow clone does: {how}. Or clone "
            "it with its files, or use Delta Lake in Spark"
        )
    return posixpath.join(base, plain)


def _elsewhere(base: str, path: str, location: Location) -> str | None:
    """The path in the table's file system; None = it is in another one."""
    parts = urlsplit(path)
    plain = unquote(parts.path)
    if not parts.scheme:
        return posixpath.normpath(posixpath.join(base, unquote(path))) if location.local else None
    if location.local:
        return plain if parts.scheme == "file" and parts.netloc in ("", "localhost") else None
    scheme = _SAME.get(parts.scheme, parts.scheme)
    if scheme in ("s3", "gs") and scheme == urlsplit(location.root).scheme:
        return f"{parts.netloc}/{plain.lstrip('/')}"
    return None


def logged_partition(values: Mapping[str, str | None], columns: pa.Schema) -> Partition:
    """Partition values as a commit has them, in the texts that `table_files` gives."""
    return tuple((name, _read_text(text, _type_of(columns, name))) for name, text in values.items())


def _type_of(columns: pa.Schema, name: str) -> pa.DataType | None:
    index = columns.get_field_index(name)
    return None if index < 0 else columns.field(index).type


def _read_text(text: str | None, kind: pa.DataType | None) -> str | None:
    if not text:
        return None  # Delta's NULL, in either spelling
    if kind is None or not pa.types.is_timestamp(kind) or kind.tz is None:
        return text
    try:
        without_zone = datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return text  # its reader refuses it
    return f"{text}Z" if without_zone else text


def _partition(values: dict[str, Any]) -> Partition:
    return tuple((name, _text(value)) for name, value in values.items())


def _text(value: object) -> str | None:
    """A partition value as the log has it: typed by deltalake, and read as text again."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
