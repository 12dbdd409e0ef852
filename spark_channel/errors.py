"""The errors, with what the caller does next.

ChannelError
├── OptionError              correct the option
├── JobFileError             correct the job file at the JSON path in the message
├── UnsupportedError         not possible here; the message names an alternative
├── FlowError                an error of the in-memory channel or a carrier
│   ├── TransactionStateError    correct the program: wrong state or wrong thread
│   ├── TransactionFullError     commit smaller transactions
│   ├── ChannelFullError         no room within the timeout: commit again, or roll back
│   ├── ChannelClosedError       pushed after close(): stop producing
│   └── EndOfChannel             closed and drained: stop consuming
├── SourceError              the source is missing, unreadable, or does not fit its schema
├── TargetError              the target is missing, full, locked, or forbids the write
│   ├── CommitError              publishing failed; the message says what the target contains
│   │   └── SupersededError          a later run of the same write took over: let that run finish
│   ├── BatchRefusedError        the target refused a batch and stored no row of it: write its halves
│   └── DirtyRowsError           more rows were refused than `maxDirtyRows` allows
├── TunnelError              the tunnel is missing, or belongs to another source or schema: correct the name, or reset
│   ├── TunnelStoreError         the store of tunnels does not answer; clients retry
│   ├── ClientExpiredError       no heartbeat of this client in time: connect again
│   └── ChannelLostError         another client has the tunnel channel: stop reading it
├── StalledError             a task moved no row for `stallTimeout`; Spark retries it
├── JobCancelledError        the job was cancelled in Spark: run it again if that was not intended
├── MissingPackageError      a connector's libraries are not installed; the message has the command
├── SchemaError              a column's name or type cannot be carried without loss; the message names it
└── LimitError               a limit could not be kept, so the work stops instead of running unlimited
    ├── ServiceUnavailableError  the service did not answer; see `rowsPerSecondPerTask`
    └── ServiceDeniedError       a token is missing or wrong, or a request is invalid
        └── RejoinError              the service does not know this client: join again
"""

from typing import Any

from spark_channel.masking import mask_statement as _mask_statement
from spark_channel.plain_text import one_line as _one_line

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
    """The base class of every error that spark-channel raises on purpose.

    Passwords in statements are hidden, and the message is one line: names and texts of servers are in it.

    Attributes:
        tables: those of several tables that the error is about, by their names in the feed, while the others can be
            followed; empty: it is about no table, or about all.
        is_made_again: one of these tables was dropped, and another one has its name, whose rows can be read.
        is_final: the same work meets it again, as a full disk: an engine does not repeat the task, and ends the others.
        is_of_input: the caller named something that is not there, or that the login may not use.
    """

    tables: tuple[str, ...] = ()
    is_made_again: bool = False
    is_final: bool = False
    is_of_input: bool = False

    def __init__(self, *args: Any, **named: Any) -> None:
        masked = (
            _one_line(_mask_statement(argument)) if isinstance(argument, str) else argument
            for argument in args
        )
        super().__init__(*masked, **named)


class OptionError(ChannelError):
    """An option is unknown, malformed, or contradicts another.

    Attributes:
        option: the name as the documentation spells it.
        got: the value as text; None if it is secret or absent.
        takes: what is accepted, as text.
    """

    is_final = True
    is_of_input = True

    def __init__(self, message: str, *, option: str = "", got: str | None = None, takes: str = ""):
        super().__init__(message)
        self.option = option
        self.got = None if got is None else _mask_statement(got)
        self.takes = takes

    def __reduce__(self) -> tuple[Any, ...]:
        return (_option_error, (str(self), self.option, self.got, self.takes))


def _option_error(message: str, option: str, got: str | None, takes: str) -> OptionError:
    return OptionError(message, option=option, got=got, takes=takes)


class MissingPackageError(ChannelError, ImportError):
    """A connector needs libraries that this Python does not have; `name` lists them."""


class JobFileError(ChannelError):
    """A job file is malformed. The message names the JSON path, the value and what is accepted.

    `others`: the messages of further faults that were found at the same time.
    """

    is_final = True
    is_of_input = True

    others: tuple[str, ...] = ()


class JobCancelledError(ChannelError):
    """A user or the program cancelled the Spark job of a transfer. The message gives Spark's reason."""


class StalledError(ChannelError):
    """A task moved no row for `stallTimeout`, and `onStall` is `fail`."""


class UnsupportedError(ChannelError):
    """A source, a target or the platform cannot do this without breaking a promise."""

    is_final = True
    is_of_input = True


class FlowError(ChannelError):
    """An error of the in-memory channel or of a carrier."""


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
    """A source cannot be read. The message names it and what to do."""


class TargetError(ChannelError):
    """A target cannot be written. The message names it and what to do."""


class CommitError(TargetError):
    """Publishing failed. The message says what the target contains."""


class SupersededError(CommitError):
    """Another run took the write over or published it, or another job overwrote the table.

    The transaction that raises it wrote nothing.

    Attributes:
        owner: the run that was superseded.
        successor: the run that took over; "" if the claim was only released, or the table was overwritten.
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
    """The target refuses at least one row of the batch given to `TaskWriter.write`, and stored none of it.

    The host then writes the halves of the batch, down to the refused rows.
    """


class DirtyRowsError(TargetError):
    """The target refused more rows than the dirty limits allow."""


class TunnelError(ChannelError):
    """A tunnel cannot be used. The message names it and what to do."""


class TunnelStoreError(TunnelError):
    """The store of tunnels cannot be reached, or refused a statement."""


class ClientExpiredError(TunnelError):
    """The tunnel received no heartbeat of this client for `heartbeatTimeout`."""


class ChannelLostError(TunnelError):
    """A tunnel channel belongs to another client, or its checkpoint has moved."""


class SchemaError(ChannelError):
    """A column cannot be carried without loss. The message names the column and its type."""

    is_final = True
    is_of_input = True


class LimitError(ChannelError):
    """A limit cannot be kept, so the work stops."""


class ServiceUnavailableError(LimitError):
    """The service on the driver's host did not answer in time."""


class ServiceDeniedError(LimitError):
    """The service refused the caller."""


class RejoinError(ServiceDeniedError):
    """The service was restarted, or did not hear from this client in time. The client joins again."""
