"""Summary of a finished job in lines of text, and the numbers that running jobs show, too."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_channel.progress.counters import Phase
from spark_channel.progress.speed import SIDES

if TYPE_CHECKING:
    from spark_channel.progress.report import TransferReport

__all__ = ["clock_time", "duration", "grouped", "many", "over", "shares", "short", "summary_lines"]


_VERBS = {
    "read": "read",
    "write": "wrote",
    "throttle": "passed on",
    "stream": "streamed",
    "verify": "compared",
}


_WORTH_A_LINE = 0.02
"""The share of a limit below which it counts as used."""
_WORTH_NAMING = 0.01
"""Seconds."""


def summary_lines(report: "TransferReport") -> list[str]:
    """Return the summary of a job in three to five lines."""
    verb = _VERBS.get(report.kind, "copied")
    seconds = duration(report.seconds)
    if report.phase == Phase.FAILED:
        why = f": {report.error}" if report.error else ""
        moved = f"{grouped(report.rows_moved)} rows ({short(report.bytes_moved)}B) moved"
        lines = [f"failed after {moved} in {seconds}{why}"]
        if report.commit == "task" and report.where and report.rows:
            lines.append(f"{grouped(report.rows)} rows are in {report.where} (commit=task)")
    else:
        size = f"{grouped(report.rows)} rows"
        if report.bytes or not report.rows:
            size += f" ({short(report.bytes)}B)"
        enough = "; Spark wanted no more, as with a LIMIT" if report.phase == Phase.ENDED else ""
        achieved = (
            f": {_achieved(report)}" if report.moving_seconds or not report.rows_moved else ""
        )
        lines = [f"{verb} {size} in {seconds}{achieved}{enough}"]
    if report.phase != Phase.FAILED and (report.where or report.publish_seconds):
        parts = [f"the rows are in {report.where}"] if report.where else []
        if report.publish_seconds:
            published = f"published in {duration(report.publish_seconds)}"
            parts.append(f"{published} (commit={report.commit or 'job'})")
        lines.append(", ".join(parts))
    details = [
        f"{many(report.tasks, 'task')}, {many(report.attempts, 'attempt')} ({report.retries} retried)"
    ]
    waited = report.waits_by_side
    total = sum(waited.get(side, 0.0) for side in SIDES)
    if total > 0:
        details.append("waits: " + shares({side: waited.get(side, 0.0) / total for side in SIDES}))
    kept = (
        f", kept in {report.dirty_rows_path}"
        if report.dirty_rows_path and report.rows_dirty
        else ""
    )
    details.append(f"dirty {grouped(report.rows_dirty)}{kept}")
    lines.append("; ".join(details))
    if unused := _unused(report):
        lines.append(unused)
    if report.retries and report.rows_moved > report.rows:
        lines.append(f"{grouped(report.rows_moved)} rows moved, retries and speculation included")
    if report.aim:
        lines.append(report.aim)
    if report.held:
        held = ", ".join(f"{name} for {duration(seconds)}" for name, seconds in report.held.items())
        lines.append(f"slowed down by the {held}")
    if report.behind:
        lines.append(f"at its end: {report.behind}")
    if report.rerun:
        lines.append(f"run it again: {report.rerun}")
    return lines


def _achieved(report: "TransferReport") -> str:
    texts = []
    rows = _in_force(report, "rows_per_second")
    nbytes = _in_force(report, "bytes_per_second")
    if rows != {None} or nbytes == {None}:
        texts.append(_ratio(report.rows_per_second, rows, " rows"))
    if nbytes != {None}:
        texts.append(_ratio(report.bytes_per_second, nbytes, "B"))
    return ", ".join(texts) + over(report.moving_seconds, report.seconds, report.rows_moved)


def _in_force(report: "TransferReport", which: str) -> set[int | None]:
    """Return the limits that the job had; None = no limit."""
    changed = {getattr(each, which) for each in report.changes if not each.note}
    return changed or {getattr(report, f"{which}_limit")}


def _unused(report: "TransferReport") -> str:
    """Return when the limit was not used, and what the tasks waited for; empty where it was, or where it changed."""
    moving, limit = report.moving_seconds, report.rows_per_second_limit
    used = report.rows_per_second
    if limit is None:
        limit, used = report.bytes_per_second_limit, report.bytes_per_second
    if limit is None or report.changes or report.phase == Phase.FAILED or not report.rows_moved:
        return ""
    share = 1 - used / limit
    if share < _WORTH_A_LINE or not report.samples:
        return ""
    begin, end = report.last_row_seconds - moving, report.last_row_seconds
    edge = min(1.0, moving / 2)
    by_rows = report.rows_per_second_limit is not None
    times = [
        _lost_seconds(report, limit, by_rows, *part)
        for part in ((begin, begin + edge), (end - edge, end), (begin + edge, end - edge))
    ]
    reason = _why_lost(report)
    names = ("of the first second", "of the last one", f"between{f' ({reason})' if reason else ''}")
    parts = [
        f"{duration(seconds)} {name}"
        for seconds, name in zip(times, names, strict=True)
        if seconds >= _WORTH_NAMING
    ]
    return f"{100 * share:.1f} % of the limit was not used: {', '.join(parts)}" if parts else ""


def _lost_seconds(
    report: "TransferReport", limit: float, by_rows: bool, begin: float, end: float
) -> float:
    """Seconds of the limit that were not used from `begin` to `end`."""
    lost = since = 0.0
    for each in report.samples:
        speed = each.rows_per_second if by_rows else each.bytes_per_second
        lost += max(0.0, min(end, each.seconds) - max(begin, since)) * (1 - speed / limit)
        since = each.seconds
    return max(0.0, lost)


def _why_lost(report: "TransferReport") -> str:
    """Return what the tasks waited for most, beside the limit; empty: nothing."""
    waited = report.waits_by_side
    found = {f"waits for the {side}": waited.get(side, 0.0) for side in ("source", "target")}
    if report.limit_scope.startswith("shared limit"):
        found["other jobs had it"] = report.waits.get("limit:turn", 0.0)
    reason = max(found, key=lambda each: found[each])
    return reason if found[reason] >= _WORTH_NAMING else ""


def over(moving: float, seconds: float, rows: int) -> str:
    """The seconds that a speed is of, where the text beside it gives others."""
    if not rows or duration(moving) == duration(seconds):
        return ""
    return f" over the {duration(moving)} in which rows moved"


def _ratio(speed: float, limits: set[int | None], unit: str) -> str:
    now = f"{short(speed)}{unit}/s"
    known = sorted(each for each in limits if each is not None)
    if not known:
        return now
    if len(limits) == 1:
        return f"{now} of {short(known[0])}{unit}/s allowed ({100 * speed / known[0]:.1f} %)"
    most = "no limit" if None in limits else f"{short(known[-1])}{unit}/s"
    return f"{now}; the limit changed between {short(known[0])}{unit}/s and {most}"


def short(value: float) -> str:
    """Three digits and a unit: 999, 99.8k, 12.4M, 3.05G. Whole numbers without a fraction."""
    if value < 999.5:
        return f"{value:.0f}" if value >= 99.95 or value == int(value) else f"{value:.1f}"
    for unit in ("k", "M", "G", "T", "P", "E"):
        value /= 1000
        if value < 999.5 or unit == "E":
            text = f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
            return f"{text}{unit}"
    raise AssertionError("the last unit takes all")


def shares(shares: Mapping[str, float]) -> str:
    percents = _percents([shares.get(side, 0.0) for side in SIDES])
    return " ".join(f"{side} {percent} %" for side, percent in zip(SIDES, percents, strict=True))


def _percents(shares: list[float]) -> list[int]:
    """Whole percents that add up to 100: the largest remainders are rounded up."""
    floors = [math.floor(100 * share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda i: floors[i] - 100 * shares[i])
    for i in by_rest[: 100 - sum(floors)]:
        floors[i] += 1
    return floors


def grouped(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def many(count: int, noun: str) -> str:
    return f"{grouped(count)} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """Three digits, as `short` has them: a reader who divides the rows by it finds the speed beside it."""
    if seconds >= 99.95:
        return clock_time(round(seconds))
    if seconds < 0.001:
        return "less than 1 ms"
    text = f"{round(seconds, 3):.3g}"
    return f"{text} s" if "." in text else f"{text}.0 s"


def clock_time(seconds: float) -> str:
    """`3:20`, or `1:03:20` from an hour on; more than 99 hours is `>99 h`."""
    whole = math.ceil(seconds)
    if whole >= 99 * 3600:
        return ">99 h"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
