"""Where a database server keeps its claims and its staging, and a write that keeps neither."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.commit import Claim, Held, Identity, Taken
from spark_channel.connectors.contracts import Receipt, Unfinished, WriteContext
from spark_channel.connectors.sql.claims import CLAIMS, PLANS, STAGE, TASKS, ClaimDialect, Claims
from spark_channel.connectors.sql.kept import KeptPlans

__all__ = ["Ledger", "NoClaims"]

_SUFFIXES = {CLAIMS: "", TASKS: "_tasks", PLANS: "_transfers"}


@dataclass(frozen=True, slots=True)
class Ledger:
    """`staging` is the schema of staging tables, `schema` that of the claims, and `table` the name of their first one.

    `without`: why there are no claims; "" = there are.
    """

    staging: str
    schema: str
    table: str = CLAIMS
    without: str = ""

    def name(self, own: str) -> str:
        """The name of one of the tables of claims."""
        return own if self.table == CLAIMS else f"{self.table}{_SUFFIXES[own]}"

    @property
    def stage(self) -> str:
        """How the names of staging tables begin: two ledgers that share a schema leave each other's alone."""
        if (self.schema, self.table) == (self.staging, CLAIMS):
            return STAGE
        place = hashlib.sha256(f"{self.schema}\0{self.table}".encode()).hexdigest()[:6]
        return f"spark_channel_st_{place}_"


class NoClaims(Claims):
    """The claims of a write without a ledger: nothing fences it, and nothing is known of it later."""

    def __init__(self) -> None:
        super().__init__(_NoSession(), ClaimDialect(lambda name: name, lambda _name: False))

    def exist(self) -> bool:
        return False

    def ensure(self) -> None: ...

    @property
    def plans(self) -> KeptPlans:
        raise NotImplementedError("a write without a ledger has no transaction id, and keeps no plan")

    def take(
        self, identity: Identity, owner: str, *, position: int | None = None, resume: int | None = None
    ) -> Taken:
        claim = Claim(identity, owner)
        return Taken(claim, Held(identity, owner, claim.epoch, position))

    def published_at(self, target: str, context: WriteContext) -> str | None:
        return None

    def unfinished(self, target: str, context: WriteContext) -> Unfinished | None:
        return None

    def peek(self, held: Held) -> Claim:
        return Claim(held.identity, held.owner, held.epoch)

    def fence(self, held: Held, *, exclusive: bool = False) -> Claim:
        return self.peek(held)

    def make_ready(self, held: Held, *, overwrite: bool) -> tuple[Held, bool]:
        return held, True

    def task(self, held: Held, task: int) -> Receipt | None:
        return None

    def receipts(self, identity: Identity) -> list[Receipt]:
        return []

    def add_task(self, held: Held, receipt: Receipt) -> None: ...

    def begin_publish(self, held: Held) -> bool:
        return True

    def publish(self, held: Held, *, rows: int, nbytes: int) -> None: ...

    def hold_committed(self, held: Held, receipts: Sequence[Receipt]) -> None: ...

    def release(self, held: Held, overtaken: Claim | None = None) -> list[Receipt]:
        return []

    def beat(self, held: Held) -> None: ...

    def show_life(self, held: Held, found: Claim) -> None: ...

    def orphans(self, stages: Sequence[str], keep: Held, **_more: Any) -> list[str]:
        return []

    def prune(self) -> None: ...


class _NoSession:
    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        raise AssertionError("a write without a ledger runs no statement of it")
