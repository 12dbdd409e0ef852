"""Credentials of a store that a catalog vends for a time, and that are renewed before they expire."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from obstore.store import AzureStore, S3Store

__all__ = ["Vended"]


class Vended(Protocol):
    """The place of one table. Plain data that is pickled with a plan; clients are kept by it, so it can be hashed."""

    def store(self) -> "S3Store | AzureStore":
        """The bucket or container of the table, whose requests have credentials that still hold."""
        ...

    @property
    def removes_one_by_one(self) -> bool:
        """Whether objects are removed by `remove`: a request for several would need rights on the whole container."""
        ...

    def remove(self, path: str) -> None:
        """Remove one object; none is removed if it is not there.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        ...
