"""The tables of claims: their names, where they are, their SQL, and the plans of partial transfers in one of them."""

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from spark_channel.clock import utc_now, utc_text
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity
from spark_channel.errors import TargetError

__all__ = [
    "CLAIMS",
    "COLUMNS",
    "LONGEST_NAME",
    "LONGEST_TARGET",
    "LONG_NAME",
    "PLANS",
    "PUBLISHED",
    "STAGE",
    "TASKS",
    "ClaimDialect",
    "Ledger",
    "RowSession",
    "StoredPlans",
    "claim_of",
    "is_own_table",
    "stage_prefix",
]

_MOST_PLAN = 64 << 20
"""Bytes of a plan that is unpacked."""

CLAIMS, TASKS, PLANS = "spark_channel_claims", "spark_channel_tasks", "spark_channel_transfers"
PUBLISHED = f"{CLAIMS}_published"
"""The index of `CLAIMS` by kind and time of publication."""
LONGEST_TARGET, LONGEST_NAME = 200, 500
"""Letters that the columns `target` and `name` take; longer ones are cut, and their keys are made of the whole."""
COLUMNS = (
    "claim, target, kind, name, version, owner, epoch, state, batch, published_at, row_count, byte_count, process, "
    "beat_at, doubted_at, generation"
)
"""The columns of `CLAIMS`."""
STAGE = "spark_channel_stage_"
_STAGE_ELSEWHERE = "spark_channel_st_"
LONG_NAME = 63
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_PART = 4000
"""Letters in a row: what every database takes in one text of bounded length."""
_DAYS = 30
_SUFFIXES = {CLAIMS: "", PUBLISHED: "_published", TASKS: "_tasks", PLANS: "_transfers"}


class RowSession(Protocol):
    """A connection that runs one statement; parameters are marked as `ClaimDialect.mark` says."""

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a small result; [] for a statement without one."""
        ...


@dataclass(frozen=True, slots=True)
class ClaimDialect:
    """The SQL of claims in one database.

    `table` returns a table's name for a statement, quoted and with the schema; `exists` whether it is there.
    `mark` writes the n-th parameter, counted from 1. `text` is the type of a text of at most n letters. `after` ends
    CREATE TABLE. `before` gives statements that run before a table is made, in the same transaction.

    `share` and `update` end a SELECT that locks its rows until the transaction ends. None: the database has no such
    words, so that a row is locked by an UPDATE that changes nothing. "": its transactions exclude each other anyway.

    `end_when_silent` is a statement that runs before a claim is locked: the server ends a transaction whose client
    then says nothing, so that a process that is paused, or whose host is lost, soon holds it no more. "": not needed.
    `takes_scripts`: it is sent with the statement that locks the claim, and other statements together, in one exchange.

    `distrust` says why a table must not be used, None when it may: another role owns it, or it has triggers or rules.

    `longest_name` is how many letters a table's name can have. `reserved` are the columns of the claims whose names the
    database keeps for itself, with how they are written instead. `stage` begins the names of staging tables.

    `index` is the statement that makes `PUBLISHED`, for which `exists` is asked too; "": the database needs none.
    `index_in_table` makes it with its table, where this takes fewer rights. `hurry` lets statements that lock a whole
    table wait for 2 s at most, since all others queue behind them, and `hurry_end` ends that.
    """

    table: Callable[[str], str]
    exists: Callable[[str], bool]
    mark: Callable[[int], str] = lambda _number: "?"
    text: Callable[[int], str] = lambda size: f"VARCHAR({size})"
    after: str = ""
    before: Callable[[str], Sequence[str]] = lambda _table: ()
    share: str | None = None
    update: str | None = None
    end_when_silent: str = ""
    takes_scripts: bool = False
    distrust: Callable[[str], str | None] = lambda _table: None
    longest_name: int = 63
    reserved: Mapping[str, str] = field(default_factory=dict)
    stage: str = STAGE
    index: str = ""
    index_in_table: str = ""
    hurry: str = ""
    hurry_end: str = ""


def is_own_table(name: str) -> bool:
    """Whether `name` is that of a table which spark-channel keeps for itself."""
    lowered = name.lower()
    return lowered in (CLAIMS, TASKS, PLANS) or lowered.startswith((STAGE, _STAGE_ELSEWHERE))


def stage_prefix(
    held_claim: HeldClaim, key: str | None = None, *, longest: int = 63, beginning: str = STAGE
) -> str:
    """The prefix of a run's staging tables, which differs between the runs of one write.

    Where names may have fewer than 63 letters, the beginning is all of them: such a run has one staging table.
    """
    key = key or held_claim.identity.key
    if longest >= LONG_NAME:
        return f"{beginning}{key[:16]}_{held_claim.epoch}_"
    number = int.from_bytes(hashlib.sha256(f"{key}_{held_claim.epoch}".encode()).digest())
    letters: list[str] = []
    while len(letters) < longest - len(STAGE):
        number, digit = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return STAGE + "".join(letters)


@dataclass(frozen=True, slots=True)
class Ledger:
    """`staging` is the schema of staging tables, `schema` that of the claims, and `table` the name of their first one.

    `without`: why there are no claims; "" = there are.
    """

    staging: str
    schema: str
    table: str = CLAIMS
    without: str = ""

    def name(self, table: str) -> str:
        """The name of one of the tables of claims."""
        return table if self.table == CLAIMS else f"{self.table}{_SUFFIXES[table]}"

    @property
    def stage(self) -> str:
        """How the names of staging tables begin: two ledgers that share a schema leave each other's alone."""
        if (self.schema, self.table) == (self.staging, CLAIMS):
            return STAGE
        digest = hashlib.sha256(f"{self.schema}\0{self.table}".encode()).hexdigest()[:6]
        return f"spark_channel_st_{digest}_"


@dataclass(frozen=True, slots=True)
class StoredPlans:
    """The plans in one database, each a compressed text in parts.

    `table` is the table's name in a statement. `run` runs a statement whose parameters are
    marked `?`; `exists` returns whether the table exists, `before` are statements that run before it is made, and
    `after` ends CREATE TABLE.
    """

    table: str
    run: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
    exists: Callable[[], bool]
    before: tuple[str, ...] = ()
    after: str = ""

    def make(self) -> None:
        """Create the table if it does not exist, in a separate transaction: some databases end one here."""
        if self.exists():
            return
        for statement in self.before:
            self.run(statement, ())
        if not self.exists():
            self.run(
                f"CREATE TABLE {self.table} (claim VARCHAR(64) NOT NULL, part INTEGER NOT NULL, "
                f"kept VARCHAR({_PART}) NOT NULL, kept_at VARCHAR(32) NOT NULL, PRIMARY KEY (claim, part)){self.after}",
                (),
            )

    def keep(self, claim: str, text: str) -> None:
        """Keep `text` under the key `claim`, instead of what was kept before; plans of long ago go. After `make`."""
        self.run(
            f"DELETE FROM {self.table} WHERE claim = ? OR kept_at < ?",  # noqa: S608 - a quoted name
            (claim, _moment(_DAYS)),
        )
        packed = base64.b64encode(zlib.compress(text.encode())).decode("ascii")
        for part, start in enumerate(range(0, len(packed), _PART)):
            self.run(
                f"INSERT INTO {self.table} (claim, part, kept, kept_at) VALUES (?, ?, ?, ?)",  # noqa: S608 - names are quoted
                (claim, part, packed[start : start + _PART], _moment()),
            )

    def find(self, claim: str) -> str | None:
        """The plan that was stored under `claim`."""
        if not self.exists():
            return None
        parts = self.run(f"SELECT kept FROM {self.table} WHERE claim = ? ORDER BY part", (claim,))  # noqa: S608 - names are quoted
        packed = "".join(str(part) for (part,) in parts)
        if not packed:
            return None
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(base64.b64decode(packed), _MOST_PLAN)
        if not unpacking.eof:
            raise TargetError(
                f"table {self.table} holds a plan that is cut off, or of more than {_MOST_PLAN} bytes: another program "
                f"wrote it. Delete its rows WHERE claim = '{claim}', and run the transfer again"
            )
        return text.decode()

    def drop(self, claim: str) -> None:
        if self.exists():
            self.run(f"DELETE FROM {self.table} WHERE claim = ?", (claim,))  # noqa: S608 - names are quoted


def _moment(days_ago: int = 0) -> str:
    return utc_text(utc_now() - timedelta(days=days_ago))


def claim_of(row: tuple[Any, ...]) -> Claim:
    """The claim of a row with `COLUMNS`."""
    _, target, kind, name, version, owner, epoch, state, batch, published_at = row[:10]
    rows, nbytes, process, beat_at, doubted_at, generation = row[10:]
    return Claim(
        Identity(str(target), kind, str(name), _number(version)),
        str(owner or ""),
        int(epoch),
        state,
        _number(batch),
        None if published_at is None else str(published_at),
        int(rows),
        int(nbytes),
        str(process or ""),
        str(beat_at or ""),
        str(doubted_at or ""),
        _number(generation),
    )


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
