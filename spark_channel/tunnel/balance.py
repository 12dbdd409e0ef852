"""Shares channels among clients: within one of each other, moving as few as possible. Pure."""

from collections.abc import Mapping, Sequence

__all__ = ["Shares", "share"]

Shares = tuple[dict[str, str], tuple[str, ...]]
"""(free channel -> client that gets it, channels that their clients must give back)."""


def share(
    held: Mapping[str, Sequence[str]], leaving: Mapping[str, int], free: Sequence[str],
    wanted: Mapping[str, Sequence[str]] | None = None,
) -> Shares:  # fmt: skip
    """Who gets `free` channels, and who gives some back.

    `held`: client -> its open channels, every live client with an entry. `leaving`: client -> how many it is
    giving back already; each is free only when its client says so, and counts for no client until then.
    `wanted`: client -> channels that it asks for first (they were in its unfinished batch).
    """
    clients = sorted(held)
    if not clients:
        return {}, ()
    on_the_way = sum(leaving.values())
    total = sum(len(held[client]) for client in clients) + len(free) + on_the_way
    floor, extra = divmod(total, len(clients))
    # Those who hold most keep the extra ones, so that nothing moves for the remainder's sake.
    order = sorted(clients, key=lambda client: (-len(held[client]), client))
    target = {client: floor + (number < extra) for number, client in enumerate(order)}
    counts = {client: len(held[client]) for client in clients}
    given: dict[str, str] = {}
    asked = {channel: client for client in clients for channel in (wanted or {}).get(client, ())}
    for channel in sorted(free, key=lambda each: each not in asked):
        client = asked.get(channel, "")
        if not client or counts[client] >= target[client]:
            client = min(clients, key=lambda each: (counts[each] - target[each], counts[each], each))
        given[channel] = client
        counts[client] += 1
    back = tuple(
        channel for client in clients for channel in list(held[client])[target[client] :]
        if counts[client] > target[client]
    )  # fmt: skip
    return given, back
