"""The identity of a write, which is the same for every run of it."""

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Identity"]

Kind = Literal["txn", "stream", "job", "table"]


class Write(Protocol):
    """The identity of a write: `connectors.WriteContext`."""

    @property
    def job(self) -> str: ...
    @property
    def txn(self) -> tuple[str, int] | None: ...
    @property
    def stream(self) -> tuple[str, int] | None: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """A write to `target`: a transaction pair, a streaming query, or else the job that carries it out.

    `version` is the pair's; a stream has one identity for all its batches. "table" is the target itself: the epoch of
    its claim counts how often it was overwritten.
    """

    target: str
    kind: Kind
    name: str
    version: int | None = None

    @classmethod
    def of(cls, target: str, context: Write) -> "Identity":
        if context.stream is not None:
            return cls(target, "stream", context.stream[0])
        if context.txn is not None:
            return cls(target, "txn", *context.txn)
        return cls(target, "job", context.job)

    @property
    def key(self) -> str:
        """64 letters: one column that every database can index, whatever the names hold."""
        text = json.dumps([self.target, self.kind, self.name, self.version], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def shown(self) -> str:
        """For messages."""
        if self.kind == "txn":
            return f"txnVersion {self.version} of {self.name!r}"
        return f"stream {self.name!r}" if self.kind == "stream" else f"job {self.name!r}"
