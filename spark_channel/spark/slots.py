"""How many Spark tasks run at a time, as the session's settings bound it."""

import re
from collections.abc import Callable

__all__ = ["slots_of"]

_LOCAL = re.compile(r"local(?:\[.*\])?")
_Get = Callable[[str], str | None]


def slots_of(get: _Get, cores: int) -> int | None:
    """The most tasks that run at once; None when nothing bounds them (dynamic allocation without a maximum).

    `get` reads a setting of Spark's, `cores` are those that its executors have now. Executors that Spark starts
    in the place of lost ones are the same number.
    """
    cpus = _number(get("spark.task.cpus")) or 1
    if _LOCAL.fullmatch(get("spark.master") or ""):
        return max(1, cores // cpus)
    if (most := _number(get("spark.cores.max"))) is not None:
        return max(1, most // cpus)
    dynamic = (get("spark.dynamicAllocation.enabled") or "").lower() == "true"
    executors = _number(
        get("spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances")
    )
    own = _number(get("spark.executor.cores"))
    if executors is not None and own is not None:
        return max(1, executors * (own // cpus))
    return None if dynamic else max(1, cores // cpus)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None
