"""The claims of a write without a ledger."""

from collections.abc import Callable, Sequence
from typing import Any

from spark_channel.connectors.base.claims import (
    Claim,
    ClaimDecision,
    Follows,
    HeldClaim,
    Identity,
)
from spark_channel.connectors.base.contract import PartialWrite, Receipt, WriteContext
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect, StoredPlans
from spark_channel.connectors.sql.write.claims import Claims

__all__ = ["NoClaims"]


class NoClaims(Claims):
    """The claims of a write without a ledger: nothing fences it, and nothing is known of it later."""

    def __init__(self) -> None:
        super().__init__(_NoSession(), ClaimDialect(lambda name: name, lambda _name: False))

    def exist(self) -> bool:
        return False

    def ensure(self) -> None: ...

    @property
    def plans(self) -> StoredPlans:
        raise NotImplementedError("a write without a ledger keeps no plan")

    def take(
        self,
        identity: Identity,
        owner: str,
        *,
        position: int | None = None,
        follows: Follows | None = None,
        resume: int | None = None,
    ) -> ClaimDecision:
        claim = Claim(identity, owner)
        held_claim = HeldClaim(identity, owner, claim.epoch, position, follows=follows)
        return ClaimDecision(claim, held_claim)

    def knows(self, target: str) -> bool:
        return True  # not known, and nothing is said of it

    def published_at(self, target: str, context: WriteContext) -> str | None:
        return None

    def unfinished(self, target: str, context: WriteContext) -> PartialWrite | None:
        return None

    def peek(self, held_claim: HeldClaim) -> Claim:
        return Claim(held_claim.identity, held_claim.owner, held_claim.epoch)

    def fence(self, held_claim: HeldClaim, *, exclusive: bool = False) -> Claim:
        return self.peek(held_claim)

    def make_ready(self, held_claim: HeldClaim, *, overwrite: bool) -> tuple[HeldClaim, bool]:
        return held_claim, True

    def hold_table(self, held_claim: HeldClaim) -> None: ...

    def task(self, held_claim: HeldClaim, task: int) -> Receipt | None:
        return None

    def receipts(self, identity: Identity) -> list[Receipt]:
        return []

    def add_task(
        self, held_claim: HeldClaim, receipt: Receipt, *, then: str = ""
    ) -> list[tuple[Any, ...]]:
        return []

    def makes_table(self, held_claim: HeldClaim) -> None: ...

    def begin_publish(self, held_claim: HeldClaim) -> bool:
        return True

    def lost(self, held_claim: HeldClaim) -> bool:
        return False

    def publish(self, held_claim: HeldClaim, *, rows: int, nbytes: int) -> None: ...

    def check_committed(self, held_claim: HeldClaim, receipts: Sequence[Receipt]) -> None: ...

    def release(self, held_claim: HeldClaim, overtaken: Claim | None = None) -> list[Receipt]:
        return []

    def heartbeat(self, held_claim: HeldClaim) -> None: ...

    def show_life(self, held_claim: HeldClaim, claim: Claim) -> None: ...

    def orphans(self, stages: Sequence[str], keep: HeldClaim, **_options: Any) -> list[str]:
        return []

    def tidy(self, limited: Callable[[str, int], str]) -> None: ...


class _NoSession:
    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        raise AssertionError("a write without a ledger runs no statement of it")
