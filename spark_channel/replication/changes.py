"""Tables that are followed by the source's log: one tunnel reads all of them, and each delivery is published once."""

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from spark_channel.connectors import WriteContext, load_reader
from spark_channel.errors import OptionError, TunnelError
from spark_channel.masking import scheme_of
from spark_channel.option_types import resolve_references
from spark_channel.replication.config import Replication
from spark_channel.replication.drift import LoadColumns
from spark_channel.replication.masks import MaskColumns, mask_of
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.tables import TableCopy, connector_of
from spark_channel.transform.transformer import Transformer, prepare
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.records import ChannelState
from spark_channel.tunnel.source import StreamSource

__all__ = ["Follower", "key_of", "tunnel_name"]

_NAME = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+)')
_OPERATION = "_op"
_OF_LOG = ("_lsn", "_commit_ts", "_table")
_SCHEMA_CHANGES = {
    "evolve": "evolve",
    "discard_value": "ignore",
    "discard_row": "ignore",
    "freeze": "fail",
}


class Follower:
    """Follows the tables of one source from one log position, from `run` to `stop`.

    The tunnel's store is in the target's database, beside its claims, unless the source's option `tunnelStore` names
    another. A delivery is a batch of its own stream: one that comes again is not published again.
    """

    def __init__(
        self,
        replication: Replication,
        copies: Sequence[TableCopy],
        outcomes: Mapping[str, TableOutcome],
        report: ReplicationReport,
    ) -> None:
        self._replication, self._report = replication, report
        self._copies = {each.stream: each for each in copies}
        self._by_name = {
            (each.table.schema, each.table.name): each for each in copies if each.table is not None
        }
        self._outcomes = outcomes
        self._lock = threading.Lock()
        self._keys = {each.stream: key_of(each) for each in copies}
        self._tunnel: Tunnel | None = None
        self._id = ""

    def run(self, more: Mapping[str, Any], *, once: bool) -> None:
        """Follow the tables; `once`: up to the changes that are there now, with all existing rows.

        Raises:
            ChannelError: the log cannot be read, or a table cannot be written.
        """
        options = self._options(more)
        tunnel = Tunnel(tunnel_name(self._replication), options, store=_store_of(self._replication))
        self._tunnel = tunnel
        made = self._make_tables()
        if tunnel.exists():
            self._follow_others(tunnel, options, made)
            tunnel.resume()
        else:
            tunnel.create()
        self._id = tunnel.store.get(tunnel.name).id
        tunnel.consume(self._process, threads=self._replication.parallel, drained=once)

    def _make_tables(self) -> set[str]:
        """Make the tables that the target lacks, each with its key; returns their streams."""
        made = set()
        for copy in self._copies.values():
            key = self._keys[copy.stream]
            given = resolve_references(copy.writer) | {
                "writeMode": "upsert",
                "keyColumns": list(key),
            }
            writer, _ = connector_of(self._replication.target, "writer").writer_with(given)
            if writer.exists() is not False:
                continue
            columns = load_reader(resolve_references(copy.reader))[0].schema()
            schema = prepare(self._steps(copy), columns).output_schema
            plan = writer.prepare(WriteContext(f"make-{uuid.uuid4().hex}", commit="job"), schema)
            writer.commit(plan, [])
            made.add(copy.stream)
        return made

    def _follow_others(
        self, tunnel: Tunnel, options: Mapping[str, Any], made: Collection[str]
    ) -> None:
        """Add the tables that the file has since the tunnel was made, and remove those that it has not any more.

        A table that the tunnel has, and that was `made` in the target just now, was dropped there: it is read again.
        """
        feed = StreamSource(options).feed
        known = {
            name
            for each in tunnel.store.state(tunnel.name).channels.values()
            if not each.is_base and each.state != ChannelState.TERMINATED
            for name in feed.tables(each.token)
        }
        there = {_parts(name) for name in known}
        for parts, copy in self._by_name.items():
            assert copy.table is not None
            if parts not in there:
                tunnel.add_table(copy.table.dbtable)
            elif copy.stream in made:
                tunnel.resnapshot(copy.table.dbtable)
        for name in known:
            if _parts(name) not in self._by_name:
                tunnel.remove_table(name)

    def stop(self) -> None:
        """End after the deliveries at hand, from any thread."""
        if self._tunnel is not None:
            self._tunnel.stop()

    def _options(self, more: Mapping[str, Any]) -> dict[str, Any]:
        source = resolve_references(self._replication.source.options())
        given = {key.lower() for key in source}
        if not {"publication", "binlog"} & given:
            raise OptionError(
                "source: full_then_changes needs publication, the name of a publication that has the tables: "
                f"CREATE PUBLICATION shop FOR TABLE {', '.join(self._tables())}",
                option="publication",
            )
        made = {**source, "tables": ", ".join(self._tables()), "onSchemaChange": "evolve", **more}
        if "publication" in given and "slot" not in given:
            made["slot"] = tunnel_name(self._replication).replace("-", "_")
        return made

    def _tables(self) -> list[str]:
        return [each.table.dbtable for each in self._copies.values() if each.table is not None]

    def _process(self, delivery: Delivery) -> None:
        batches = list(delivery.batches)  # bounded by the range
        copy = self._by_name.get(_parts(delivery.table))
        if copy is None:
            raise TunnelError(
                f"the tunnel delivers {delivery.table}, which no stream names: reset the tunnel {delivery.tunnel!r}"
            )
        if not batches:
            return
        steps = self._steps(copy)
        rows = pa.concat_tables(
            [pa.Table.from_batches([_changed(each, steps)]) for each in batches],
            promote_options="permissive",
        )
        written = self._write(copy, delivery, rows.combine_chunks())
        with self._lock:
            outcome = self._outcomes[copy.stream]
            outcome.rows += written
            outcome.state = "done"
            outcome.position = delivery.sequence

    def _steps(self, copy: TableCopy) -> list[Transformer]:
        steps: list[Transformer] = []
        if copy.options.columns:
            steps.append(MaskColumns.of(copy.stream, copy.options.columns))
        if copy.options.load_columns:
            steps.append(LoadColumns(self._report.run_id, self._report.started_at))
        return steps

    def _write(self, copy: TableCopy, delivery: Delivery, rows: pa.Table) -> int:
        given = resolve_references(copy.writer)
        given |= {
            "writeMode": "apply",
            "keyColumns": list(self._keys[copy.stream]),
            "onSchemaChange": _SCHEMA_CHANGES[copy.contract.columns],
        }
        writer, _ = connector_of(self._replication.target, "writer").writer_with(given)
        stream = (f"replicate/changes/{self._id}/{delivery.channel}", delivery.sequence)
        context = WriteContext(f"changes-{uuid.uuid4().hex}", commit="job", stream=stream)
        plan = writer.prepare(context, rows.schema)
        if plan.published_at is not None:
            return 0
        try:
            task = writer.open(plan, 0, 0)
            try:
                for batch in rows.to_batches():
                    task.write(batch)
                receipt = task.close()
            except BaseException:
                task.rollback()
                raise
            writer.commit(plan, [receipt])
        except BaseException:
            writer.abort(plan, None)
            raise
        return int(rows.num_rows)


def _parts(name: str) -> tuple[str, str]:
    """Schema and table of a name as feeds write it: what is no plain name is quoted."""
    found = [
        (quoted or ticked).replace('""', '"').replace("``", "`") if quoted or ticked else plain
        for quoted, ticked, plain in _NAME.findall(name)
    ]
    return ("", found[0]) if len(found) == 1 else (found[0], found[-1])


def _changed(batch: pa.RecordBatch, steps: Sequence[Transformer]) -> pa.RecordBatch:
    """The rows as the target gets them: what the log says of a row itself is not masked."""
    kept = [name for name in batch.schema.names if name not in (*_OF_LOG, _OPERATION)]
    rows = batch.select(kept)
    made = prepare(steps, rows.schema).run(rows).batch
    return made.append_column(
        pa.field(_OPERATION, pa.string()), batch.column(_OPERATION).cast(pa.string())
    )


def tunnel_name(replication: Replication) -> str:
    """One tunnel for each source and target, whatever streams the file has."""
    said = [[each.url, each.path] for each in (replication.source, replication.target)]
    return f"replicate-{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]}"


def key_of(copy: TableCopy) -> tuple[str, ...]:
    """The columns that tell the table's rows apart.

    Raises:
        OptionError: it has none, or a mask makes them alike.
    """
    key = copy.options.primary_key or load_reader(resolve_references(copy.reader))[0].primary_key()
    if not key:
        raise OptionError(
            f"{copy.stream} has no primary key, so its changes do not name their rows: give it one, or use mode full"
        )
    for name in key:
        mask = mask_of(copy.options.columns or {}, copy.stream, name)
        if mask is not None and mask.kind not in ("keep", "hmac", "sha256"):
            raise OptionError(
                f"primary key {name!r} has mask {mask}, which does not tell rows apart: use hmac or sha256"
            )
    return key


def _store_of(replication: Replication) -> str | None:
    """Where the tunnel keeps its positions: in the target's database. None = the source's option says it.

    Raises:
        OptionError: the target is no database that can keep them.
    """
    if any(key.lower() == "tunnelstore" for key in replication.source.options()):
        return None
    options = resolve_references(replication.target.options())
    url = str(options.get("url") or "").removeprefix("jdbc:")
    scheme = scheme_of(url)
    if scheme == "sqlite":
        return url.removeprefix("sqlite:")
    if scheme in ("postgresql", "postgres"):
        user, password = options.get("user"), options.get("password")
        if user is None or "@" in urlsplit(url).netloc:
            return url
        login = quote(str(user), safe="")
        login += f":{quote(str(password), safe='')}" if password is not None else ""
        return url.replace("://", f"://{login}@", 1)
    raise OptionError(
        "target: it cannot keep the position in the source's log: name a place with the source's option tunnelStore, "
        "a file or a url of PostgreSQL",
        option="tunnelStore",
    )
