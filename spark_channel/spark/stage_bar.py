"""Spark's own bar of running stages, which it draws over whatever else is on the terminal."""

import contextlib
from collections.abc import Callable
from typing import Any

__all__ = ["stage_bar"]

_NEVER = 1 << 40
"""Milliseconds."""


def stage_bar(context: Any) -> Callable[[bool], None] | None:
    """Hides (True) and shows (False) the bar of `context`; None where Spark draws none.

    Spark has no setting for it that holds in a running session. Its bar leaves out stages that are younger than
    a delay, which is raised meanwhile; where this Spark has no such delay, the bar stays.
    """
    try:
        found = context._jsc.sc().progressBar()  # noqa: SLF001 - no public road
        if found.isEmpty():
            return None
        bar = found.get()
        field = bar.getClass().getDeclaredField("firstDelayMSec")
        field.setAccessible(True)
        delay = field.getLong(bar)
    except Exception:  # what another Spark raises here is its own
        return None

    def hide(hidden: bool) -> None:
        with contextlib.suppress(Exception):  # the driver's JVM may be gone
            field.setLong(bar, _NEVER if hidden else delay)
            bar.finishAll()  # clears what is shown

    return hide
