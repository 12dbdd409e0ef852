"""Tunnels: full, then incremental reading of a source, shared by clients and checkpointed."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.tunnel.reader import TunnelReader
    from spark_channel.tunnel.records import ChannelState, ClientState, ConnectState, TunnelType
    from spark_channel.tunnel.tunnel import Tunnel
    from spark_channel.tunnel.worker import Delivery, Processor
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "reader": ["TunnelReader"],
            "records": ["ChannelState", "ClientState", "ConnectState", "TunnelType"],
            "tunnel": ["Tunnel"],
            "worker": ["Delivery", "Processor"],
        },
    )

__all__ = [
    "ChannelState",
    "ClientState",
    "ConnectState",
    "Delivery",
    "Processor",
    "Tunnel",
    "TunnelReader",
    "TunnelType",
]
