"""Pays for one batch while the next is fetched."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

__all__ = ["Ahead", "pushing"]

Pay = Callable[[pa.RecordBatch, int], object]


class Ahead:
    """Passes batches from the thread that fetches to its own thread, which pays for them, in order.

    A limit saves up 20 ms and no more: where one thread fetches and pays in turn, what a longer fetch
    leaves unused is lost, and a copy falls short of its limit. Here the fetch of a batch begins when the
    payment of the one before begins, so that nothing is lost unless it takes longer to fetch a batch than
    to pay for one. Two batches are held at most: one that is paid, and one that is fetched.

    Used in a `with` block by the fetching thread. Its end waits until all is paid; an exception in it is
    handed to `fail`, and drops what is not paid.

    Args:
        pay: called as `pay(batch, nbytes)` in the paying thread; `fail` must end its wait.
        fail: told once of what `pay` raised, or of the exception that ends the block.
        name: of the paying thread.
    """

    def __init__(self, pay: Pay, fail: Callable[[BaseException], None], *, name: str) -> None:
        self._pay = pay
        self._fail = fail
        self._changed = threading.Condition()
        self._next: tuple[pa.RecordBatch, int] | None = None
        self._over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, batch: pa.RecordBatch, nbytes: int) -> None:
        """Hand over a batch and wait until its payment begins: then it is time to fetch the next.

        Raises:
            ChannelError: what `pay` raised for this batch or one before it.
        """
        with self._changed:
            self._next = batch, nbytes
            self._changed.notify_all()
            while self._next is not None and self._error is None:
                self._changed.wait()
            self._raise_if_failed()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and error is not self._error:
            self._fail(error)
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()
        if error is None:
            self._raise_if_failed()

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                self._pay(*taken)
                del taken  # while it waits for the next one, this one may go
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._fail(error)

    def _take(self) -> tuple[pa.RecordBatch, int] | None:
        """The next batch; None at the end."""
        with self._changed:
            while self._next is None:
                if self._over:
                    return None
                self._changed.wait()
            taken, self._next = self._next, None
            self._changed.notify_all()
            return taken

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error


class _Push(Protocol):
    def __call__(self, batch: pa.RecordBatch, *, nbytes: int) -> object: ...


@contextmanager
def pushing(push: _Push, fail: Callable[[BaseException], None], *, limited: bool, name: str) -> Iterator[Pay]:
    """What a fetching thread hands its batches to: `push` itself, under a limit with an `Ahead` before it."""

    def pay(batch: pa.RecordBatch, nbytes: int) -> None:
        push(batch, nbytes=nbytes)

    if not limited:
        yield pay
        return
    with Ahead(pay, fail, name=name) as ahead:
        yield ahead.put
