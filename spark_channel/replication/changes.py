"""Tables that are followed by the source's log: one tunnel reads all of them, and each delivery is published once."""

import json
import re
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.contract import ColumnFact
from spark_channel.connectors.base.registry import describe
from spark_channel.connectors.sql.feed.log_tables import OWN_COLUMNS
from spark_channel.errors import (
    BatchRefusedError,
    ChannelError,
    OptionError,
    SchemaError,
    SourceError,
    SupersededError,
    TargetError,
    TunnelError,
    TunnelStoreError,
)
from spark_channel.plain_text import log_of
from spark_channel.replication.config import Replication
from spark_channel.replication.deletes import (
    changed,
    kept_key,
    with_columns,
)
from spark_channel.replication.delivery_rows import GatheredRows
from spark_channel.replication.drift import decide
from spark_channel.replication.publish import ChangePublisher, why_filled
from spark_channel.replication.reasons import park
from spark_channel.replication.renames import (
    COLUMNS,
    MASKS,
    NAMES,
    ROWS,
    columns_unnoted,
    filled_of,
    has_other_names,
    is_made_again,
    key_of,
    masks_of_key,
    note_columns,
    note_masks,
    rewritten,
)
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.table_run import continue_numbers, reader_of, why_of
from spark_channel.replication.tables import TableCopy, connector_of, tables_of
from spark_channel.replication.tunnels import (
    AGAIN,
    FILE,
    PARKED,
    changes_of_channel,
    known_tables,
    note,
    options_of,
    parked_of,
    parts_of,
    tunnel_of,
)
from spark_channel.transform.transformer import prepare
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.records import ChannelState

__all__ = ["Follower"]

_LOOK_SECONDS = 30.0
"""How often the catalog is asked whether a table that has changes was rewritten."""
_COMMANDS = re.compile(
    r"[.;,]?( or| then)? ([Rr]un `spark-channel tunnel|[Rr]eset the tunnel).*", re.DOTALL
)
"""What an error says of a tunnel's commands. A replication has its own, `resume`."""
_TRIES = 3
"""A table that an end refuses so often, while that end answers, is parked."""
_log = log_of(__name__)


class Follower(ChangePublisher):
    """Follows the tables of one source from one log position, from `run` to `stop`.

    The tunnel's store is in the target's database, beside its claims, unless the source's option `tunnelStore` names
    another. A delivery is one batch of a separate stream: one that comes again is not published again.

    A table whose rows are refused is parked alone: its deliveries pass unwritten until it is resumed, and then its
    rows are read again. The tunnel's notes have the parked tables, and why.
    """

    def __init__(
        self,
        replication: Replication,
        copies: Sequence[TableCopy],
        outcomes: Mapping[str, TableOutcome],
        report: ReplicationReport,
    ) -> None:
        super().__init__(replication, report)
        self._copies = {copy.stream: copy for copy in copies}
        self._by_name = {
            (copy.table.schema, copy.table.name): copy for copy in copies if copy.table is not None
        }
        self._outcomes = outcomes
        self._lock = threading.Lock()
        self._aside: set[tuple[str, str]] = set()
        """Tables that are parked for this run, and that the tunnel keeps."""
        self._id = ""
        self._parked: dict[str, str] = {}
        self._failed: dict[tuple[str, int], int] = {}
        self._to_read_again: dict[str, tuple[str, Sequence[str]]] = {}
        """Why the rows of a table are read beside its changes when the tunnel continues, and its new columns."""
        self._renamed: dict[str, tuple[Mapping[str, ColumnFact], pa.Schema]] = {}
        """The columns of tables in which the target may have others. It gets them after the changes of before."""
        self._looked: dict[str, float] = {}
        self._left: set[str] = set()
        """Tables that are left to another start, which empties them and reads all their rows."""

    def run(self, reader_options: Mapping[str, Any], *, once: bool) -> bool:
        """Follow the tables; `once`: up to the changes that are there now, with all existing rows. Returns whether
        another `Follower` is to start.

        `reader_options` are options of the source's reader.

        Raises:
            ChannelError: the log cannot be read, or a table cannot be written.
        """
        for outcome in (self._outcomes[stream] for stream in self._copies):
            if outcome.state == "parked":  # by a try before an outage
                outcome.state, outcome.why, outcome.error_type = "not run", "", ""
        self._apart(self._find_key)
        self._leave_out()
        if not self._copies:
            return False
        self._tunnel = tunnel = tunnel_of(self._replication)
        is_there = tunnel.exists()
        if is_there:
            self._check_file(tunnel)
        again = self._make_ready(tunnel, reader_options) if is_there else set()
        if not is_there:
            self._apart(self._make_table)
        if not self._copies:
            if is_there:
                self._tell_of_slot()
            return False
        if is_there:
            options = {**options_of(self._replication, self._copies.values()), **reader_options}
            self._tunnel = tunnel = tunnel_of(self._replication, options)
            self._follow_others(tunnel, options, again)
            if not self._copies:
                self._tell_of_slot()
                return False
            options = {**options_of(self._replication, self._copies.values()), **reader_options}
            self._tunnel = tunnel = tunnel_of(self._replication, options)
            for name in again.intersection(self._copies):
                tunnel.store.note(tunnel.name, name, None)
            for stream, (reason, new) in self._to_read_again.items():
                if stream in self._copies and stream not in self._parked:
                    self._read_beside(self._copies[stream], reason, new)
                    self._asked[stream] = {*new}
            self._unread.clear()  # by `again`, the tables that were made have their rows read
            tunnel.resume()
        else:
            try:
                created = self._create(reader_options)
            except TunnelError:
                if tunnel.exists():
                    return True  # another run has made it meanwhile
                raise
            if created is None:
                return False
            self._tunnel = tunnel = created
        note_masks(tunnel, self._copies.values(), self._keys)
        for copy in columns_unnoted(tunnel, self._copies.values(), again):
            if not note_columns(tunnel, copy):
                break  # this source has no numbers
        if self._replication.file:
            tunnel.store.note(tunnel.name, FILE, self._replication.file)
        self._id = tunnel.store.get(tunnel.name).id
        for stream, reason in self._parked.items():
            if stream in self._outcomes:
                self._show_parked(stream, reason, "")
        tunnel.shown = self._shown()
        while not self._left:
            try:
                tunnel.consume(self._process, threads=self._replication.parallel, drained=once)
                if not once or not self._finish_columns():
                    break
            except ChannelError as error:
                if not self._leave_tables(tunnel, error):
                    if not self._left:
                        self._tell_of_slot()
                    return bool(self._left)
            tunnel.resume()
        if once:  # also behind rows of an earlier run, which was stopped or killed
            copies = self._copies.values()
            continue_numbers(copy for copy in copies if not self._is_parked(copy.stream))
        return bool(self._left)

    def _finish_columns(self) -> bool:
        """Give the target the columns that no row has brought; returns whether rows are to be read for them.

        This run has written all changes from before the new names, unless another run has some of them. Then a later
        run does it.
        """
        assert self._tunnel is not None
        if not self._renamed:
            return False
        channels = self._tunnel.store.state(self._tunnel.name).channels.values()
        if any(channel.client for channel in channels):
            return False
        are_read = []

        def step(copy: TableCopy) -> None:
            if copy.stream in self._renamed and not self._is_parked(copy.stream):
                facts, columns = self._renamed.pop(copy.stream)
                with suppress(SupersededError):
                    if self._get_columns(copy, facts, columns):
                        are_read.append(copy)

        self._apart(step)
        return bool(are_read)

    def _create(self, reader_options: Mapping[str, Any]) -> Tunnel | None:
        """Make the tunnel, without the tables that it cannot follow; None: it can follow none.

        Raises:
            ChannelError: an end does not answer, or it refuses all tables together.
        """
        refused: dict[str, ChannelError] = {}
        try:
            while self._copies:
                options = {**options_of(self._replication, self._copies.values()), **reader_options}
                tunnel = tunnel_of(self._replication, options)
                try:
                    tunnel.create()
                    return tunnel
                except ChannelError as error:
                    named = self._named(error)
                    if not named:
                        raise
                    for copy in named:
                        self._leave_aside(copy)
                        refused[copy.stream] = error
            return None
        finally:
            park(refused, self._outcomes)

    def _named(self, error: ChannelError) -> list[TableCopy]:
        """The tables that an error of the source is about, if the source answers."""
        copies = [self._by_name.get(parts_of(name)) for name in error.tables]
        may_be_away = isinstance(error, SourceError)
        return [
            copy
            for copy in copies
            if copy is not None and (not may_be_away or self._answers(copy, error))
        ]

    def _leave_tables(self, tunnel: Tunnel, error: ChannelError) -> bool:
        """Park the tables that an error of the log is about, and let the tunnel continue without them; returns whether
        there are others. A table that was made again is left to another start, which empties it and reads its rows.

        Raises:
            ChannelError: this one, which is about no table.
        """
        names = [name for name in error.tables if parts_of(name) in self._aside]
        for copy in self._named(error):
            assert copy.table is not None
            names += [name for name in error.tables if self._by_name.get(parts_of(name)) is copy]
            explained = self._explained(tunnel, copy, error)
            if error.is_made_again and explained.is_made_again:
                _log.warning(
                    "%s was dropped, and made again: its rows are deleted in the target, and read again",
                    copy.stream,
                )
                self._note_again(copy.stream)
                self._left.add(copy.stream)
            else:
                self._park(copy, explained)
        if not names:
            raise error
        if known_tables(tunnel, options_of(self._replication, self._copies.values())) <= set(names):
            return False
        for name in names:
            tunnel.remove_table(name, at_once=True)
        return True

    def _tell_of_slot(self) -> None:
        """Report that no table is left to read the log for, which a server of replication slots keeps all the same."""
        options = options_of(self._replication, self._copies.values())
        slot = next((value for key, value in options.items() if key.lower() == "slot"), None)
        if slot is None:
            return
        typed = self._replication.typed
        message = (
            f"no table is followed now, and the source keeps its log for replication slot {slot!r} without bound: "
            f"remove what has parked the tables, then run `spark-channel replicate resume {typed} '*'` and the file "
            f"again. Or run `spark-channel replicate end {typed}`, which drops the slot: the next run then reads all "
            "rows again"
        )
        self._report.notes = (*self._report.notes, message)
        _log.warning(message)

    def _explained(self, tunnel: Tunnel, copy: TableCopy, error: ChannelError) -> ChannelError:
        """The error that has the statement to run, if there is one; else this one, without the tunnel's commands."""
        assert copy.table is not None
        try:
            columns = prepare(self._steps(copy), reader_of(copy).schema()).output_schema
            self._column_changes(copy, columns)
            tunnel.check_table(copy.table.dbtable)
        except ChannelError as refusal:
            return refusal
        explained = type(error)(_COMMANDS.sub("", str(error)))
        explained.is_made_again = error.is_made_again
        return explained

    def _find_key(self, copy: TableCopy) -> None:
        self._keys[copy.stream] = key_of(copy)
        self._steps(copy)  # which need the keys of the masks

    def _check_file(self, tunnel: Tunnel) -> None:
        """Check that the tunnel is of this file: one that has other tables would end those of the file before it.

        Raises:
            OptionError: another file has tables in it that this one does not have.
        """
        before, here = tunnel.store.note_of(tunnel.name, FILE), self._replication.file
        if not before or not here or before == here:
            return
        followed = known_tables(tunnel, options_of(self._replication, self._copies.values()))
        copied = self._by_name.keys() | self._aside
        lost = sorted(name for name in followed if parts_of(name) not in copied)
        if lost:  # no file has a table that the source has dropped
            existing = {(table.schema, table.name) for table in tables_of(self._replication)}
            lost = [name for name in lost if parts_of(name) in existing]
        if lost:
            raise OptionError(
                f"{before} follows {', '.join(lost[:3])} from this source into this target by tunnel {tunnel.name!r}, "
                f"and {here} would end that, since a source and a target have one tunnel: write these tables into "
                f"{here}, too, or give the two files one. If {before} was renamed: run {here} once with them, and "
                "remove them then"
            )
        message = (
            f"tunnel {tunnel.name!r} was followed by {before}, and now by {here}: do not run both"
        )
        self._report.notes = (*self._report.notes, message)
        _log.warning(message)

    def _make_ready(self, tunnel: Tunnel, reader_options: Mapping[str, Any]) -> set[str]:
        """Make and empty the tables whose rows are to be read again; returns their streams."""
        parked, notes = parked_of(tunnel), tunnel.store.notes(tunnel.name)
        self._parked = {
            stream: reason for stream, (state, reason) in parked.items() if state == PARKED
        }
        again = {stream for stream, (state, _) in parked.items() if state == AGAIN}

        def step(copy: TableCopy) -> None:
            stream = copy.stream
            if self._make_table(copy):
                again.add(stream)
            elif stream not in again:
                facts = reader_of(copy).column_facts()
                altered = rewritten(tunnel, copy, facts, notes.get(ROWS + stream))
                is_keyed = not {*self._keys[stream]}.isdisjoint(altered)
                noted_numbers = json.loads(notes.get(COLUMNS + stream) or "{}")
                if has_other_names(noted_numbers, notes.get(NAMES + stream), facts):
                    self._renamed[stream] = facts, reader_of(copy).schema()
                masks = masks_of_key(copy, self._keys[stream])
                is_keyed |= notes.get(MASKS + stream, masks) != masks
                if is_made_again(noted_numbers, facts) or (is_keyed and stream not in self._parked):
                    # Also one that is parked: the tunnel reads nothing while it follows a table that was dropped.
                    self._note_again(stream)
                    again.add(stream)
                elif altered:
                    self._to_read_again[stream] = (
                        _why_rewritten(altered),
                        filled_of(copy, noted_numbers, facts),
                    )
                elif new := filled_of(copy, noted_numbers, facts):
                    self._to_read_again[stream] = why_filled(new), new
            if stream in again:
                assert copy.table is not None
                options = {**options_of(self._replication, [copy]), **reader_options}
                tunnel_of(self._replication, options).check_table(copy.table.dbtable)
                self._empty(copy)

        self._apart(step)
        return again.intersection(self._copies)

    def _leave_out(self) -> None:
        """Leave tables to the next run that the target lacks, and that the contract does not want made."""
        for copy in list(self._copies.values()):
            tables = copy.contract.tables
            if tables == "evolve" or self._writer(copy, {}).exists() is not False:
                continue
            outcome = self._outcomes[copy.stream]
            try:
                outcome.why = decide(copy.contract, pa.schema([]), None, keeps_columns=True).skip
            except SchemaError as error:
                outcome.state, outcome.why = "parked", str(error)
                outcome.error_type = type(error).__name__
            self._forget(copy)

    def _forget(self, copy: TableCopy) -> None:
        """Leave the table to the next run."""
        del self._copies[copy.stream]
        assert copy.table is not None
        del self._by_name[copy.table.schema, copy.table.name]

    def _apart(self, step: Callable[[TableCopy], object]) -> list[TableCopy]:
        """Do a step for each table. Those that it refuses are parked for this run, and returned; the others go on.

        Raises:
            ChannelError: the source or the target does not answer.
        """
        refused: dict[str, tuple[TableCopy, ChannelError]] = {}
        try:
            for copy in list(self._copies.values()):
                try:
                    step(copy)
                except (
                    SchemaError,
                    OptionError,
                    BatchRefusedError,
                    TargetError,
                    SourceError,
                ) as error:
                    is_asked = isinstance(error, (TargetError, SourceError))
                    if is_asked and not self._answers(copy, error):
                        raise
                    refused[copy.stream] = copy, error
        finally:
            park({stream: error for stream, (_, error) in refused.items()}, self._outcomes)
            for copy, _ in refused.values():
                self._leave_aside(copy)
        return [copy for copy, _ in refused.values()]

    def _leave_aside(self, copy: TableCopy) -> None:
        """Leave the table, which is parked for this run, to the next one."""
        assert copy.table is not None
        self._aside.add((copy.table.schema, copy.table.name))
        self._forget(copy)

    def _make_table(self, copy: TableCopy) -> bool:
        """Make the table that the target lacks, with its key; returns whether a tunnel is to read its rows again."""
        key = kept_key(self._keys[copy.stream], copy.deletes)
        writer = self._writer(copy, {"writeMode": "upsert", "keyColumns": list(key)})
        if writer.exists() is not False:
            return False
        if copy.contract.tables != "evolve":  # `_leave_out` saw it there
            raise SchemaError(
                f"the target's table {copy.object} was dropped, and contract.tables is {copy.contract.tables}: "
                "create it, or set contract.tables to evolve"
            )
        columns = reader_of(copy).schema()
        clashing = set(columns.names) & set(OWN_COLUMNS)
        if clashing:
            raise SchemaError(
                f"{copy.stream} has column {min(clashing)!r}, a name that the source's log adds to each change: rename "
                "the column, or use mode full"
            )
        schema = with_columns(prepare(self._steps(copy), columns).output_schema, copy.deletes)
        is_read = self._tunnel is not None and self._tunnel.exists()
        if is_read and copy.stream not in self._parked:
            # before the table is there, and looks as if it had all rows
            self._note_again(copy.stream, "its table in the target was dropped")
        try:
            context = WriteContext(
                f"make-{uuid.uuid4().hex}", commit="job", definition=reader_of(copy).definition
            )
            plan = writer.prepare(context, schema)
            writer.commit(plan, [])
        except TargetError:
            if writer.exists() is not True:  # else another run has made it meanwhile
                raise
        return is_read and copy.stream not in self._parked

    def _follow_others(
        self, tunnel: Tunnel, options: Mapping[str, Any], again: Collection[str]
    ) -> None:
        """Add the tables that the file has since the tunnel was made, and remove those that it no longer has.

        The rows of a table that the tunnel has are read `again`. So are those of a removed one if it comes back, and
        of one that is parked for this run: the target does not hear of their changes meanwhile.
        A tunnel that is stuck begins again when all its tables are read again.
        """
        names = known_tables(tunnel, options)
        tunnel_tables = {parts_of(name) for name in names}
        restarted = {
            (copy.table.schema, copy.table.name): copy.table.dbtable
            for copy in self._copies.values()
            if copy.table is not None and copy.stream in again
        }
        channels = tunnel.store.state(tunnel.name).channels.values()
        is_stuck = any(channel.state is ChannelState.PARKED for channel in channels)
        if is_stuck and tunnel_tables <= restarted.keys():
            # What is assigned cannot be read, and no table needs it.
            begun = {**options, "tables": ", ".join(restarted.values())}
            tunnel_of(self._replication, begun).reset()
            tunnel_tables, again = set(restarted), ()

        def follow(copy: TableCopy) -> None:
            assert copy.table is not None
            if (copy.table.schema, copy.table.name) in tunnel_tables:
                if copy.stream in again:
                    tunnel.resnapshot(copy.table.dbtable)
            elif copy.stream not in self._parked:  # else it left the tunnel when it was parked
                tunnel.add_table(copy.table.dbtable)

        self._apart(follow)
        for name in names:
            schema, table = parts = parts_of(name)
            if parts in self._by_name:
                continue
            stream = f"{schema}.{table}" if schema else table
            if stream not in self._parked:
                self._note_again(stream)
            if parts in self._aside:
                continue
            try:
                tunnel.remove_table(name)
            except TunnelStoreError:
                raise
            except TunnelError as error:  # the others are parked, and have left the tunnel
                _log.warning("%s", error)

    def _shown(self) -> dict[str, str]:
        """What the job of the tunnel's client says of this run; of several tables the target names none."""
        options = [self._writer(copy, {}).options for copy in self._copies.values()]
        target = connector_of(self._replication.target, "writer").name
        if options:
            target = f"{target} {describe(options[0])}"
        if len(options) > 1:
            target = f"{target.rpartition('#')[0] or target}#(tables)"
        return {"target": target, "part_of": f"replicate {self._report.run_id}"}

    def stop(self) -> None:
        """End after the deliveries at hand, from any thread."""
        if self._tunnel is not None:
            self._tunnel.stop()

    def _process(self, delivery: Delivery) -> None:
        copy = self._by_name.get(parts_of(delivery.table))
        if copy is None or copy.stream in self._left:
            # The range is from before the table left the file, the table is parked for this run, another run has
            # added it, or another start reads all its rows.
            for _ in delivery.batches:
                pass
            _log.warning("the changes of %s are not written", delivery.table)
            self._note_missed(delivery.table)
            return
        with GatheredRows() as gathered:
            self._process_of(copy, delivery, gathered)

    def _process_of(self, copy: TableCopy, delivery: Delivery, gathered: GatheredRows) -> None:
        refused: ChannelError | None = None
        shapes: set[tuple[str, ...]] = set()
        is_parked = self._is_parked(copy.stream)
        for batch in delivery.batches:
            shapes.add(tuple(batch.schema.names))
            if refused is None and not is_parked:
                try:
                    gathered.add(changed(batch, self._steps(copy)))
                except (SchemaError, OptionError) as error:
                    refused = error
        if not shapes or is_parked:
            return
        try:
            if refused is not None:
                raise refused
            other = self._other_columns(copy, shapes)
            rows = gathered.rows()
            stream = (changes_of_channel(self._id, delivery.channel), delivery.sequence)
            reason = f"{', '.join(other)} had another name" if other else self._rewritten(copy)
            if copy.stream in self._left:
                return
            if reason:
                self._note_again(copy.stream, reason)
            self._make_table(copy)
            written = self._write(copy, rows, stream)
            self._settle(copy, shapes)
        except (SchemaError, OptionError, BatchRefusedError) as error:
            self._park(copy, error)
            return
        except (TargetError, SourceError) as error:
            delivery_key = (copy.stream, delivery.sequence)
            self._failed[delivery_key] = self._failed.get(delivery_key, 0) + 1
            is_overtaken = isinstance(error, SupersededError)
            if (
                is_overtaken
                or self._failed[delivery_key] < _TRIES
                or not self._answers(copy, error)
            ):
                raise
            self._park(copy, error)
            return
        with self._lock:
            outcome = self._outcomes[copy.stream]
            outcome.rows += written
            outcome.nbytes += gathered.nbytes
            outcome.state = "done"
            outcome.why = self._columns_done.get(copy.stream, outcome.why)
            outcome.position = delivery.sequence

    def _note_missed(self, table: str) -> None:
        """Have the next run read the rows of a table again whose changes this one does not write."""
        assert self._tunnel is not None
        stream = ".".join(part for part in parts_of(table) if part)
        if self._tunnel.store.note_of(self._tunnel.name, stream) is None:
            self._note_again(stream)

    def _rewritten(self, copy: TableCopy) -> str:
        """Why the existing rows are to be read again, if the table was rewritten while this run follows it.

        With other keys, by which the target's rows are not found, the table is left to another start.
        """
        now = SYSTEM_CLOCK.now()
        if self._tunnel is None or now < self._looked.setdefault(copy.stream, now) + _LOOK_SECONDS:
            return ""
        self._looked[copy.stream] = now
        facts = reader_of(copy).column_facts()
        noted = self._tunnel.store.note_of(self._tunnel.name, ROWS + copy.stream)
        altered = rewritten(self._tunnel, copy, facts, noted)
        if not {*self._keys[copy.stream]}.isdisjoint(altered):
            reason = f"{_why_rewritten(altered)}, one of which is in the key"
            _log.warning(
                "%s: %s: its rows are deleted in the target and read again", copy.stream, reason
            )
            self._note_again(copy.stream)
            self._left.add(copy.stream)
            self.stop()
            return ""
        return _why_rewritten(altered) if altered else ""

    def _settle(self, copy: TableCopy, shapes: set[tuple[str, ...]]) -> None:
        """After rows of these `shapes` are written: have the existing rows read again, where they are to be."""
        if self._asked.get(copy.stream, set()) <= set().union(*shapes):
            self._asked.pop(copy.stream, None)
        reason = self._unread.get(copy.stream)
        if reason is not None:
            self._read_beside(copy, reason, [name for shape in shapes for name in shape])
            self._shapes[copy.stream] = set()
        self._shapes.setdefault(copy.stream, set()).update(shapes)

    def _is_parked(self, stream: str) -> bool:
        """Another run may have resumed a table that this one knows as parked."""
        if stream not in self._parked:
            return False
        assert self._tunnel is not None
        if parked_of(self._tunnel).get(stream, ("", ""))[0] != PARKED:
            del self._parked[stream]
        return stream in self._parked

    def _park(self, copy: TableCopy, error: ChannelError) -> None:
        """Before the delivery has its checkpoint: it is not written, and the table's rows are read again later."""
        assert self._tunnel is not None
        reason = why_of(error)
        note(self._tunnel, copy.stream, PARKED, reason)
        self._parked[copy.stream] = reason
        _log.warning("%s is parked: %s", copy.stream, reason)
        self._show_parked(copy.stream, reason, type(error).__name__)

    def _show_parked(self, stream: str, reason: str, kind: str) -> None:
        with self._lock:
            outcome = self._outcomes[stream]
            outcome.state, outcome.error_type = "parked", kind
            outcome.why = (
                f"{reason}. Its changes are not written until `spark-channel replicate resume "
                f"{self._replication.typed} {stream}`, after which the next run reads all its rows again"
            )


def _why_rewritten(altered: Collection[str]) -> str:
    return (
        "ALTER TABLE or ALTER TYPE has changed existing rows, and no log has their values in "
        f"{', '.join(altered)}"
    )
