"""`spark-channel compact`: the small files of a folder or table, merged."""

from collections.abc import Sequence

import typer

from spark_channel.cli.endpoints import parse_options, parse_place
from spark_channel.cli.text import json_line, say
from spark_channel.connectors.base.compaction import Compaction
from spark_channel.connectors.base.registry import load_writer
from spark_channel.connectors.files.compact import format_of_folder
from spark_channel.errors import OptionError
from spark_channel.options import parse_amount
from spark_channel.planning import Endpoint
from spark_channel.progress.report import grouped, many, short

__all__ = ["compact_target"]


def compact_target(
    target: str, options: Sequence[str], size: str, *, dry_run: bool, as_json: bool
) -> None:
    end = _end(target, options)
    target_size = _bytes(size)
    writer, _ = load_writer({**end.options, "writer": end.name})
    compaction = writer.compact(target_size, dry_run=dry_run)
    if as_json:
        typer.echo(json_line(_plain(compaction, dry_run=dry_run)))
    else:
        _say(compaction, target, target_size, dry_run=dry_run)


def _end(target: str, options: Sequence[str]) -> Endpoint:
    """The target; of a folder, the log says the format that its name leaves out."""
    writer_options = parse_options(options)["writer"]
    try:
        return parse_place("writer", target, writer_options)
    except OptionError:
        form = format_of_folder(target, writer_options)
        if form is None:
            raise
        return parse_place("writer", f"{form}:{target}", writer_options)


def _bytes(size: str) -> int:
    try:
        return parse_amount(size, bytes_=True)
    except ValueError as error:
        raise OptionError(
            f"option '--target-size' got {size!r}; it takes {error}",
            option="--target-size",
            got=size,
            takes=str(error),
        ) from None


def _say(compaction: Compaction, target: str, size: int, *, dry_run: bool) -> None:
    for reason in compaction.left:
        say(f"{target}: not merged: {reason}")
    if compaction.dropped:
        say(
            f"{target}: {many(compaction.dropped, 'file')} not merged: another job replaced some of them meanwhile. "
            "Run it again"
        )
    if not compaction.merged and (compaction.left or compaction.dropped):
        return
    if not compaction.merged:
        say(
            f"{target}: nothing to merge: {many(compaction.before, 'file')}, and no two of one kind are below "
            f"{short(size / 2)}B, half of --target-size, and of like size"
        )
        return
    word = "would become" if dry_run else "became"
    made_size = "" if compaction.made_bytes is None else f" ({short(compaction.made_bytes)}B)"
    say(
        f"{target}: {many(compaction.merged, 'file')} ({short(compaction.merged_bytes)}B) {word} "
        f"{many(compaction.made, 'file')}{made_size}; "
        f"{grouped(compaction.before)} before, {grouped(compaction.after)} after"
    )
    if not dry_run:
        say(f"the merged files {compaction.kept}")


def _plain(compaction: Compaction, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "files_before": compaction.before,
        "files_after": compaction.after,
        "merged_files": compaction.merged,
        "merged_bytes": compaction.merged_bytes,
        "made_files": compaction.made,
        "made_bytes": compaction.made_bytes,
        "rows": compaction.rows,
        "left": list(compaction.left),
        "dropped_files": compaction.dropped,
    }
