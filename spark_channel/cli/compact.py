"""`spark-channel compact`: the small files of a folder or table, merged."""

from collections.abc import Sequence

import typer

from spark_channel.cli.places import parse_options, parse_place
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
    wanted = _bytes(size)
    writer, _ = load_writer({**end.options, "writer": end.name})
    done = writer.compact(wanted, dry_run=dry_run)
    if as_json:
        typer.echo(json_line(_plain(done, dry_run=dry_run)))
    else:
        _say(done, target, wanted, dry_run=dry_run)


def _end(target: str, options: Sequence[str]) -> Endpoint:
    """The target; of a folder, the log says the format that its name leaves out."""
    given = parse_options(options)["writer"]
    try:
        return parse_place("writer", target, given)
    except OptionError:
        form = format_of_folder(target, given)
        if form is None:
            raise
        return parse_place("writer", f"{form}:{target}", given)


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


def _say(done: Compaction, target: str, size: int, *, dry_run: bool) -> None:
    for left in done.left:
        say(f"{target}: not merged: {left}")
    if done.dropped:
        say(
            f"{target}: {many(done.dropped, 'file')} not merged: another job replaced some of them meanwhile. "
            "Run it again"
        )
    if not done.merged and (done.left or done.dropped):
        return
    if not done.merged:
        say(
            f"{target}: nothing to merge: {many(done.before, 'file')}, and no two of one kind are below "
            f"{short(size / 2)}B, half of --target-size, and of like size"
        )
        return
    word = "would become" if dry_run else "became"
    made = "" if done.made_bytes is None else f" ({short(done.made_bytes)}B)"
    say(
        f"{target}: {many(done.merged, 'file')} ({short(done.merged_bytes)}B) {word} {many(done.made, 'file')}{made}; "
        f"{grouped(done.before)} before, {grouped(done.after)} after"
    )
    if not dry_run:
        say(f"the merged files {done.kept}")


def _plain(done: Compaction, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "files_before": done.before,
        "files_after": done.after,
        "merged_files": done.merged,
        "merged_bytes": done.merged_bytes,
        "made_files": done.made,
        "made_bytes": done.made_bytes,
        "rows": done.rows,
        "left": list(done.left),
        "dropped_files": done.dropped,
    }
