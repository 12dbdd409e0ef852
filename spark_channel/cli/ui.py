"""`spark-channel ui`: the page of all jobs and limits of this user on this host."""

import queue
import signal

import typer

from spark_channel.observe.page import PageServer
from spark_channel.signals import woken_by_signals

__all__ = ["show_page"]


def show_page(port: int) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    # A signal's handler may take no lock that this thread may hold, as an event's; a queue's `put` is safe there.
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: ended.put(number))
    with woken_by_signals():
        page = PageServer(port=port)
        try:
            typer.echo(f"watch and change: {page.link(change=True)}")
            typer.echo(f"watch only:       {page.link(change=False)}")
            typer.echo("Who has a link has its rights until this command ends (Ctrl-C).")
            ended.get()
        finally:
            page.stop()
    typer.echo("the page is closed; jobs continue")
