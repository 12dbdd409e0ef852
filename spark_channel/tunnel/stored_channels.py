"""A channel as rows of the store: one of its own, and one for the place of each of its tables.

A token of several tables has a place for each of them. Of these, a statement writes only what has changed. The ends of
the ranges that follow the token are kept as what each of them changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.base.contract import Token
from spark_channel.errors import TunnelError
from spark_channel.serialization import dump_tagged, load_tagged
from spark_channel.tunnel.records import UNTIL, Channel, ChannelState

__all__ = [
    "CHANNEL_COLUMNS",
    "PlaceChanges",
    "changing",
    "channel_of",
    "has_places",
    "params_of",
    "place_changes",
]

CHANNEL_COLUMNS = (
    "id, place, params, parents, state, version, client, closing_beats, sequence, token, pending"
)
_TOKEN = 9
"""The token in a row of these columns."""

_TABLES = "tables"
"""A token's places by table."""
_PLACES, _LEFT = "$tables", "$left"
"""In a text: the token's places are rows; or those that an end changes. And the tables that it no longer has."""

_PARKED, _AT, _AFTER, _PAUSED, _IN_FLIGHT = "$parked", "$at", "$after", "$paused", "$in_flight"
_MORE = (
    ("parked", _PARKED),
    ("checkpointed_at", _AT),
    ("after", _AFTER),
    ("paused", _PAUSED),
    ("in_flight", _IN_FLIGHT),
)
"""Fields of a channel that the store keeps in the split's column."""


@dataclass(frozen=True)
class PlaceChanges:
    """Rows of places to write, and their texts. A place that is `changed` has its row."""

    changed: Mapping[str, str]
    added: Mapping[str, str]
    removed: Sequence[str] = ()


def place_changes(old: Channel | None, new: Channel) -> PlaceChanges | None:
    """What becomes of the places of a channel's token; None: nothing, or it has none."""
    places = _places(new.token)
    if places is None:
        return None
    before = (None if old is None else _places(old.token)) or {}
    changed = {
        name: table_place for name, table_place in places.items() if before.get(name) != table_place
    }
    removed = [name for name in before if name not in places]
    return PlaceChanges(
        {name: dump_tagged(table_place) for name, table_place in changed.items() if name in before},
        {
            name: dump_tagged(table_place)
            for name, table_place in changed.items()
            if name not in before
        },
        removed,
    )


def has_places(row: Sequence[Any]) -> bool:
    """Whether the token of a channel's row has its places in other rows."""
    return f'"{_PLACES}":true' in row[_TOKEN]


def params_of(channel: Channel) -> str:
    """What the store keeps beside the ends and the token."""
    extra: dict[str, Any] = {_PARKED: channel.parked} if channel.parked else {}
    if channel.checkpointed_at:
        extra[_AT] = channel.checkpointed_at
    if channel.after is not None:
        before = channel.token if channel.pending is None else channel.pending
        extra[_AFTER] = _change(before, channel.after)
    if channel.paused:
        extra[_PAUSED] = True
    if channel.in_flight is not None:
        extra[_IN_FLIGHT] = channel.in_flight
    if channel.until is not None:
        extra[UNTIL] = _change(channel.token, channel.until)
    return dump_tagged({**channel.params, **extra})


def changing(channel: Channel) -> tuple[Any, ...]:
    """The columns from `state` on."""
    pending = None if channel.pending is None else _change(channel.token, channel.pending)
    return (
        str(channel.state),
        channel.version,
        channel.client,
        channel.closing_beats,
        channel.sequence,
        dump_tagged(_apart(channel.token)),
        "" if pending is None else dump_tagged(pending),
    )


def channel_of(row: Sequence[Any], places: Mapping[str, str]) -> Channel:
    """
    Raises:
        TunnelError: it was damaged.
    """
    key, position, params, parents, state, version, client, beats, sequence, token, pending = row
    try:
        stored_params = load_tagged(params)
        extra = {name: stored_params.pop(key) for name, key in _MORE if key in stored_params}
        token = load_tagged(token)
        if token.pop(_PLACES, None):
            token[_TABLES] = {name: load_tagged(text) for name, text in places.items()}
        pending = _changed(token, load_tagged(pending)) if pending else None
        if "after" in extra:
            extra["after"] = _changed(token if pending is None else pending, extra["after"])
        if stored_params.get(UNTIL) is not None:
            stored_params[UNTIL] = _changed(token, stored_params[UNTIL])
        return Channel(
            key,
            position,
            stored_params,
            tuple(load_tagged(parents)),
            ChannelState(state),
            version,
            client,
            beats,
            sequence,
            token,
            pending,
            **extra,
        )
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise TunnelError(
            f"channel {key!r} of the tunnel is damaged in its store ({error}); reset the tunnel"
        ) from error


def _places(token: Token) -> Mapping[str, Any] | None:
    places = token.get(_TABLES)
    return places if isinstance(places, Mapping) else None


def _apart(token: Token) -> Token:
    """Without its places."""
    if _places(token) is None:
        return token
    return {**{name: value for name, value in token.items() if name != _TABLES}, _PLACES: True}


def _change(before: Token, after: Token) -> Token:
    """A token by what it changes of the one before it; as it is, where they are not of several tables."""
    old, new = _places(before), _places(after)
    if old is None or new is None:
        return after
    changed = {
        name: table_place for name, table_place in new.items() if old.get(name) != table_place
    }
    dropped = [name for name in old if name not in new]
    return {**_apart(after), _PLACES: changed, **({_LEFT: dropped} if dropped else {})}


def _changed(before: Token, change: Token) -> Token:
    """What `_change` was given, or a whole token."""
    if _PLACES not in change:
        return change
    dropped = change.get(_LEFT, ())
    places = {
        name: table_place for name, table_place in before[_TABLES].items() if name not in dropped
    }
    others = {name: value for name, value in change.items() if name not in (_PLACES, _LEFT)}
    return {**others, _TABLES: {**places, **change[_PLACES]}}
