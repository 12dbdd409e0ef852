"""The error tree. A leaf says what the caller does next.

ChannelError
├── OptionError              fix the option
├── JobFileError             fix the job file at the path named
├── UnsupportedError         this cannot be done here; the message names what can
├── FlowError                the in-memory channel
│   ├── TransactionStateError    fix the program: wrong state or wrong thread
│   ├── TransactionFullError     commit smaller transactions
│   ├── ChannelFullError         no room in time: roll back and retry, or make room
│   ├── ChannelClosedError       pushed after close(): stop producing
│   └── EndOfChannel             all was taken: stop consuming
├── SourceError              what is read is missing, unreadable, or does not fit its schema
├── TargetError              what is written to is missing, full, locked or forbids it
│   ├── CommitError              publishing failed; the message says what the target contains
│   │   └── SupersededError          a later run of the same write took over: nothing to do, let that run finish
│   ├── BatchRefusedError        the target refuses data in a batch and took none of it: write its halves
│   └── DirtyRowsError           more rows were refused than `maxDirtyRows` allows
├── TunnelError              a tunnel is missing, or of another source or schema: name another, or reset it
│   ├── TunnelStoreError         the tunnel's store does not answer; clients try again
│   ├── ClientExpiredError       the tunnel has given this client up: connect anew
│   └── ChannelLostError         the tunnel channel went to another client: stop reading it
├── StalledError             a task moved no row for `stallTimeout`; Spark tries it again
├── JobCancelledError        the job was cancelled in Spark: run it again if that was not wanted
├── MissingPackageError      a connector's libraries are not installed here; the message says how
├── SchemaError              a column's name or type cannot be carried; the message names the column
└── LimitError               a limit could not be kept, so the work stops instead of running unlimited
    ├── ServiceUnavailableError  the service did not answer; see `rowsPerSecondPerTask`
    └── ServiceDeniedError       a token is missing or wrong, or a request makes no sense
        └── RejoinError              the service does not know this client (any more): join again
"""

from typing import Any

__all__ = [
    "BatchRefusedError",
    "ChannelClosedError",
    "ChannelError",
    "ChannelFullError",
    "ChannelLostError",
    "ClientExpiredError",
    "CommitError",
    "DirtyRowsError",
    "EndOfChannel",
    "FlowError",
    "JobCancelledError",
    "JobFileError",
    "LimitError",
    "MissingPackageError",
    "OptionError",
    "RejoinError",
    "SchemaError",
    "ServiceDeniedError",
    "ServiceUnavailableError",
    "SourceError",
    "StalledError",
    "SupersededError",
    "TargetError",
    "TransactionFullError",
    "TransactionStateError",
    "TunnelError",
    "TunnelStoreError",
    "UnsupportedError",
]


class ChannelError(Exception):
    """The root: `except ChannelError` catches all that spark-channel raises on purpose."""


class OptionError(ChannelError):
    """An option is unknown, malformed, or contradicts another.

    `option` is its name as the documentation spells it, `got` the value as text (None where it
    is secret or absent), `takes` what would have been accepted.
    """

    def __init__(self, message: str, *, option: str = "", got: str | None = None, takes: str = ""):
        super().__init__(message)
        self.option = option
        self.got = got
        self.takes = takes

    def __reduce__(self) -> tuple[Any, ...]:
        return (_option_error, (str(self), self.option, self.got, self.takes))


def _option_error(message: str, option: str, got: str | None, takes: str) -> OptionError:
    return OptionError(message, option=option, got=got, takes=takes)


class MissingPackageError(ChannelError, ImportError):
    """A connector needs libraries that this Python does not have; `name` lists them."""


class JobFileError(ChannelError):
    """A job file is broken; the message names the JSON path, what it got and what it takes.

    `others`: the messages of further faults that were found at the same time.
    """

    others: tuple[str, ...] = ()


class JobCancelledError(ChannelError):
    """A user, or the program, cancelled the Spark job of a transfer; the message says what Spark was told."""


class StalledError(ChannelError):
    """A task made no progress for `stallTimeout`, and `onStall` is `fail`."""


class UnsupportedError(ChannelError):
    """A combination that cannot be carried out truthfully, and is refused for it."""


class FlowError(ChannelError):
    """Something about the in-memory channel."""


class TransactionStateError(FlowError):
    """A transaction was used in a state, or from a thread, that does not allow the call."""


class TransactionFullError(FlowError):
    """More than `transaction_rows` in one transaction."""


class ChannelFullError(FlowError):
    """No room within `keep_alive` seconds; the transaction is still open."""


class ChannelClosedError(FlowError):
    """The channel takes no more batches."""


class EndOfChannel(FlowError):  # noqa: N818 - an end, not a failure, as in StopIteration
    """The channel is closed and drained."""


class SourceError(ChannelError):
    """A source cannot be read; the message names it and what to do."""


class TargetError(ChannelError):
    """A target cannot be written; the message names it and what to do."""


class CommitError(TargetError):
    """Publishing failed; the message says what stands in the target."""


class SupersededError(CommitError):
    """Another run took the write over or published it, or another job overwrote the table.

    The transaction that found out wrote nothing. `owner` is the run that was overtaken, `successor` the one that took
    over ("" when the claim was only given back, or the table was overwritten).
    """

    def __init__(self, message: str, *, owner: str = "", successor: str = ""):
        super().__init__(message)
        self.owner = owner
        self.successor = successor

    def __reduce__(self) -> tuple[Any, ...]:
        return (_superseded_error, (str(self), self.owner, self.successor))


def _superseded_error(message: str, owner: str, successor: str) -> SupersededError:
    return SupersededError(message, owner=owner, successor=successor)


class BatchRefusedError(TargetError):
    """The target refuses at least one row of the batch given to `TaskWriter.write`, and took none of it.

    The writer goes on: the host writes the halves, down to the guilty rows.
    """


class DirtyRowsError(TargetError):
    """The target refused more rows than the dirty limits allow."""


class TunnelError(ChannelError):
    """A tunnel cannot be used; the message names it and what to do."""


class TunnelStoreError(TunnelError):
    """The store of tunnels cannot be reached, or refused a statement."""


class ClientExpiredError(TunnelError):
    """The tunnel heard nothing of this client for longer than its timeout."""


class ChannelLostError(TunnelError):
    """A tunnel channel belongs to another client, or its checkpoint has moved."""


class SchemaError(ChannelError):
    """A column cannot be carried exactly; the message names the column and its type."""


class LimitError(ChannelError):
    """A limit cannot be kept."""


class ServiceUnavailableError(LimitError):
    """The service on the driver's host did not answer in time."""


class ServiceDeniedError(LimitError):
    """The service refused the caller."""


class RejoinError(ServiceDeniedError):
    """The service was restarted, or heard nothing of this client for too long; its client joins again."""
