"""Writes a table: atomically from one staging table (`commit=job`), or task by task (`commit=task`)."""

from firebird_connector.dialect import LONGEST, FirebirdDialect
from firebird_connector.options import FirebirdWriteOptions
from firebird_connector.session import BUSY, DATA, LOST, TAKEN, FirebirdSession, has_code
from spark_channel.connectors.sql import (
    ClaimDialect,
    StandardMerge,
    TableDatabase,
    Verdict,
    WriteTarget,
)
from spark_channel.errors import TargetError

__all__ = ["FirebirdDatabase"]


class FirebirdDatabase(TableDatabase[FirebirdSession]):
    """See `TableDatabase`."""

    Options = FirebirdWriteOptions
    options: FirebirdWriteOptions
    dialect = FirebirdDialect()
    Merge = StandardMerge

    @property
    def shown(self) -> str:
        return self.options.place

    def connect(
        self, failure: type[TargetError], purpose: str, *, patient: bool
    ) -> FirebirdSession:
        return FirebirdSession(self.options, failure)

    def verdict(self, error: BaseException) -> Verdict:
        verdict = Verdict.OTHER
        if has_code(error, LOST | BUSY):
            verdict |= Verdict.LOST
        if has_code(error, BUSY | TAKEN):
            verdict |= Verdict.CONFLICT
        if has_code(error, DATA):
            verdict |= Verdict.REFUSED_ROW
        return verdict

    def claim_dialect(self, session: FirebirdSession, place: WriteTarget) -> ClaimDialect:
        def listed(table: str, more: str, name: str) -> bool:
            query = f"SELECT 1 FROM {table} WHERE RDB$RELATION_NAME = ? {more}"
            return bool(session.rows(query, (self.dialect.spelled(name),)))

        def distrust(name: str) -> str | None:
            return (
                "it has a trigger"
                if listed("RDB$TRIGGERS", "AND RDB$SYSTEM_FLAG = 0", name)
                else None
            )

        return ClaimDialect(
            table=lambda name: name,
            exists=lambda name: listed("RDB$RELATIONS", "", name),
            distrust=distrust,
            share="WITH LOCK",
            update="WITH LOCK",
            longest_name=LONGEST,
            reserved={"row_count": '"ROW_COUNT"'},
        )
