"""The limit of refused rows."""

from dataclasses import dataclass

__all__ = ["DirtyLimit"]


@dataclass(frozen=True, slots=True)
class DirtyLimit:
    """The most rows that a job may refuse: a number, a share of all rows (0 to 1), or both; None = no limit.

    Without either, any number of rows may be refused.
    """

    rows: int | None = 0
    fraction: float | None = None

    @property
    def tolerant(self) -> bool:
        """Whether the job continues after one refused row."""
        return self.rows != 0 and self.fraction != 0.0

    @property
    def limited(self) -> bool:
        """Whether any number of refused rows ends the job."""
        return self.rows is not None or self.fraction is not None

    def exceeded(self, dirty: int, rows: int, expected: int | None = None, *, final: bool = False) -> str:
        """Why `dirty` of `rows` (good and dirty) are too many; empty while they are not.

        Before the end a share can only be told from the number of `expected` rows: of a few dirty rows at the
        head of a file nothing follows. `final`: no more rows come.
        """
        if self.rows is not None and dirty > self.rows:
            return f"{_rows(dirty)} refused, and maxDirtyRows is {self.rows}"
        if self.fraction is not None and dirty:
            whole = self._whole(dirty, rows, expected, final)
            if whole is not None and dirty > self.fraction * whole:
                about = "" if final else "about "
                return (
                    f"{_rows(dirty)} refused of {about}{whole} ({100 * dirty / whole:.3g} %), "
                    f"and maxDirtyFraction is {self.fraction:g} ({100 * self.fraction:g} %)"
                )
        return ""

    def _whole(self, dirty: int, rows: int, expected: int | None, final: bool) -> int | None:
        """The number of rows that the share refers to; None = not known yet."""
        if final or self.fraction == 0.0:
            return max(rows, dirty)
        return None if expected is None else max(expected, rows)


def _rows(count: int) -> str:
    return "1 row was" if count == 1 else f"{count} rows were"
