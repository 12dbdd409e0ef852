"""The table that ends a run: DataX's figures in English, or with its own labels for tools that parse them."""

from spark_channel.cli.outcome import RunOutcome

__all__ = ["closing_table"]

_ENGLISH = (
    "Job started at", "Job ended at", "Total time", "Average bytes", "Average records", "Records read",
    "Records refused",
)  # fmt: skip
_DATAX = (
    "任务启动时刻", "任务结束时刻", "任务总计耗时", "任务平均流量", "记录写入速度", "读出记录总数", "读写失败总数",
)  # fmt: skip
_UNITS = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


def closing_table(run: RunOutcome, *, as_datax: bool = False) -> str:
    """Seven lines, laid out as DataX does. Times are local ones, bytes are Arrow bytes."""
    labels = _DATAX if as_datax else _ENGLISH
    values = (
        f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}",
        f"{run.ended_at.astimezone():%Y-%m-%d %H:%M:%S}",
        f"{run.seconds:.0f}s" if as_datax else f"{run.seconds:.1f}s",
        f"{_bytes(int(run.bytes_per_second))}/s",
        f"{int(run.rows_per_second)}rec/s",
        f"{run.rows_read}",
        f"{run.rows_refused}",
    )
    lines = [
        f"{label:<26}: {value:<18}" if place < 2 else f"{label:<26}: {value:>19}"
        for place, (label, value) in enumerate(zip(labels, values, strict=True))
    ]
    return "\n".join(lines)


def _bytes(number: int) -> str:
    """As DataX writes a number of bytes."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.2f}{name}"
    return f"{number}B"
