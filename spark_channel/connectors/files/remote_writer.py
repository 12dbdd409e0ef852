"""Writes files to a folder on a server of files: hidden while they are written, renamed when the job ends.

It keeps no log: FTP has no operation of which one of two clients succeeds, and partners who fetch the files expect
nothing else in the folder. So each file is whole when it is seen, files appear one after another, and a job that is run
again writes its files again.
"""

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base.contract import (
    Receipt,
    RowTally,
    TaskWriter,
    WriteContext,
    WritePlan,
)
from spark_channel.connectors.files.file_errors import writing
from spark_channel.connectors.files.file_names import new_attempt
from spark_channel.connectors.files.filesystem import Location
from spark_channel.connectors.files.foreign_files import counted, foreign, head_of, refuse_strange
from spark_channel.connectors.files.formats.base import Encoder, Format
from spark_channel.connectors.files.options import FileWriteOptions
from spark_channel.connectors.remote import Address, Remote, connect
from spark_channel.errors import CommitError, TargetError
from spark_channel.plain_text import log_of

__all__ = ["RemotePlan", "RemoteTarget"]

_log = log_of(__name__)

_HIDDEN = ".spark-channel"
_PROBE = "probe"
_OLD_SECONDS = 86_400.0
"""A probe lives for some milliseconds; the server's clock may be wrong by hours."""


@dataclass(frozen=True)
class RemotePlan(WritePlan):
    """`replaced`: the names of the files that an overwrite removes."""

    path: str = ""
    replaced: tuple[str, ...] = ()

    @property
    def at_least_once(self) -> bool:
        return True


class RemoteTarget:
    """The folder of one write."""

    def __init__(self, form: Format, options: FileWriteOptions, location: Location) -> None:
        self.form, self.options, self.place, self.path = form, options, location, location.path
        self.address = Address.from_uri(
            location.root, () if location.login is None else location.login.settings
        )
        self.shown = location.show()

    @contextmanager
    def connected(self) -> Iterator[Remote]:
        with writing(self.shown), connect(self.address) as remote:
            yield remote

    def names(self, remote: Remote) -> list[str]:
        """The files that readers see, of those whose names begin with `filePrefix`."""
        info = remote.info(self.path)
        if info is None:
            return []
        if not info.is_folder:
            raise TargetError(
                f"{self.shown} is a file; a write needs a directory, which it fills with files"
            )
        prefix = self.options.file_prefix or ""
        return sorted(
            entry.name
            for entry in remote.entries(self.path)
            if not entry.is_folder
            and not entry.name.startswith((".", "_"))
            and entry.name.startswith(prefix)
        )

    def exists(self) -> bool:
        with self.connected() as remote:
            return bool(self.names(remote))

    def foreign_content(self) -> str:
        with self.connected() as remote:
            paths = foreign(self.names(remote))
        return counted(paths)

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> None:
        self.form.check(schema, self.options)
        with self.connected() as remote:
            self._replaced(remote, context)

    def _replaced(self, remote: Remote, context: WriteContext) -> list[str]:
        """
        Raises:
            TargetError: files of others that are not of the format. OSError: the server does not list the folder
                whole, so that no job could find what it staged.
        """
        names = self.names(remote)
        if not context.overwrite:
            return []
        if self.options.file_prefix is None and not self.options.replace_foreign_files:
            refuse_strange(self.shown, self.form.name, foreign(names), partial(head_of, self.place))
        return names

    def prepare(self, context: WriteContext, schema: pa.Schema) -> RemotePlan:
        self.form.check(schema, self.options)
        with self.connected() as remote:
            replaced = self._replaced(remote, context)
            remote.make(self.path)
            self._try_to_write(remote, self.staged_path(context.job, _PROBE))
        return RemotePlan(
            context.job,
            schema,
            "job",
            context.overwrite,
            context.txn,
            path=self.path,
            replaced=tuple(replaced),
        )

    def _try_to_write(self, remote: Remote, probe: str) -> None:
        """That the folder may be written is not said by any listing."""
        try:
            remote.open_write(probe).close()
        except BaseException:
            # The connection may be of no use any more, and the server may have the file.
            with suppress(OSError), connect(self.address) as other:
                other.remove(probe)
            raise
        remote.remove(probe)

    def staged_path(self, job: str, name: str) -> str:
        return posixpath.join(self.path, f"{_HIDDEN}.{job}.{name}")

    def commit(self, plan: RemotePlan, receipts: Sequence[Receipt]) -> None:
        """First the new files, then without the old ones: a reader meanwhile sees both, and never none."""
        with self.connected() as remote:
            for receipt in receipts:
                for name in receipt.details["files"]:
                    self._publish(remote, plan, name)
            for name in plan.replaced:
                remote.remove(posixpath.join(self.path, name))
            self._clear_after(remote, plan)
            if plan.replaced and (both := sorted(set(self.names(remote)) & set(plan.replaced))):
                raise CommitError(
                    f"{self.shown}: the new files are there, and {len(both)} of the files that they replace, too, such "
                    f"as {both[0]!r}: the server shows it, and removes no file of that name. Remove it on the server"
                )

    def _publish(self, remote: Remote, plan: RemotePlan, name: str) -> None:
        staged, final = self.staged_path(plan.job, name), posixpath.join(self.path, name)
        if remote.info(staged) is not None:
            remote.rename(staged, final)
        elif remote.info(final) is None:  # else this is a second commit
            raise CommitError(
                f"{self.shown}: neither {final} nor its staging is there; another program has taken it. "
                f"Files of job {plan.job} that were published before it remain; "
                "run the job again for the others"
            )

    def _clear_after(self, remote: Remote, plan: RemotePlan) -> None:
        """The job's rows are there: it does not fail for what another attempt of it may have left."""
        try:
            self._clear(remote, plan)
        except OSError as error:
            _log.warning(
                "%s: job %s has published its files, and what it may have staged beside them stays, as %s.%s.*: %s",
                *(self.shown, plan.job, _HIDDEN, plan.job, error),
            )

    def abort(self, plan: RemotePlan) -> None:
        with self.connected() as remote:
            self._clear(remote, plan)

    def _clear(self, remote: Remote, plan: RemotePlan) -> None:
        """Remove what the job staged, and the probes of jobs that were killed."""
        if remote.info(self.path) is None:
            return
        beginning = posixpath.basename(self.staged_path(plan.job, ""))
        old = utc_now().timestamp() - _OLD_SECONDS
        for entry in remote.entries(self.path):
            is_probe = entry.name.startswith(f"{_HIDDEN}.") and entry.name.endswith(f".{_PROBE}")
            is_old = entry.changed is not None and entry.changed < old
            if entry.name.startswith(beginning) or (is_probe and is_old):
                remote.remove(entry.path)

    def open(self, plan: RemotePlan, task: int, attempt: int) -> TaskWriter:
        return _RemoteTask(self, plan, task, attempt)


class _RemoteTask(TaskWriter):
    """One connection for all files of an attempt, opened with the first rows."""

    def __init__(self, target: RemoteTarget, plan: RemotePlan, task: int, attempt: int) -> None:
        self._target, self._plan = target, plan
        self._tally, self._unique = RowTally(task, attempt), new_attempt()
        self._names: list[str] = []
        self._held = ExitStack()
        self._remote: Remote | None = None
        self._stream: Any = None
        self._encoder: Encoder | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.check_open()
        limit, start = self._target.options.max_rows_per_file, 0
        with writing(self._target.shown):
            while start < batch.num_rows:
                encoder = self._encoder or self._begin()
                part = (
                    batch.slice(start) if limit is None else batch.slice(start, limit - self._rows)
                )
                encoder.write(part)
                start += part.num_rows
                self._rows += part.num_rows
                if self._is_full():
                    self._finish()
        self._tally.add(batch)

    def _is_full(self) -> bool:
        rows, nbytes = (
            self._target.options.max_rows_per_file,
            self._target.options.max_bytes_per_file,
        )
        return (rows is not None and self._rows >= rows) or (
            nbytes is not None and self._stream.tell() >= nbytes
        )

    def _begin(self) -> Encoder:
        target, plan = self._target, self._plan
        if self._remote is None:
            self._remote = self._held.enter_context(target.connected())
        extension = target.form.extension(target.options)
        number = len(self._names)
        prefix = f"{target.options.file_prefix}__" if target.options.file_prefix else "part-"
        attempt = f"{self._tally.attempt}-{self._unique}-{number:03d}"
        name = f"{prefix}{self._tally.task:05d}-{plan.job}-{attempt}.{extension}"
        self._names.append(name)
        self._stream = pa.PythonFile(
            self._remote.open_write(target.staged_path(plan.job, name)), mode="w"
        )
        self._encoder = target.form.encoder(self._stream, plan.schema, target.options)
        self._rows = 0
        return self._encoder

    def _finish(self) -> None:
        if self._encoder is not None:
            self._encoder.finish()
            self._encoder = None
            self._stream.close()
            self._stream = None

    def close(self) -> Receipt:
        self._tally.check_open()
        with writing(self._target.shown):
            self._finish()
        self._held.close()
        return self._tally.receipt(files=self._names)

    def rollback(self) -> None:
        if self._tally.ended:
            return
        self._tally.ended = True
        if self._encoder is not None:
            self._encoder.abandon()
            self._encoder = None
        try:
            if self._stream is not None:
                self._stream.close()
        except (OSError, pa.ArrowException):
            pass  # the file is removed either way
        self._held.close()
        if self._names:
            with self._target.connected() as remote:
                for name in self._names:
                    remote.remove(self._target.staged_path(self._plan.job, name))
