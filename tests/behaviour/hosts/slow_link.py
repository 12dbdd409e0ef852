"""A link of 50 ms each way that loses 1 % of its packets, imitated by a relay between two addresses.

The kernels that run the tests have no `netem`. The relay passes bytes on 50 ms after they came, and lets a lost packet
hold up all later bytes for 200 ms, as long as Linux waits before it sends one again. It does not imitate what TCP
does about its window then: a real link of this kind is slower for bulk data.
"""

import asyncio
import random
import sys

__all__ = ["DELAY"]

DELAY = 0.050
_LOSS = 0.01
_PACKET = 1448
_AGAIN = 0.2
_PIECE = 16 * 1024
_PIECES = 64
"""In flight at most, in each direction."""


async def _carry(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, chance: random.Random
) -> None:
    """Pass all bytes on, late and in order, then the end."""
    loop = asyncio.get_running_loop()
    flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)

    async def land() -> None:
        while True:
            due, piece = await flight.get()
            await asyncio.sleep(due - loop.time())
            if not piece:
                return
            sink.write(piece)
            await sink.drain()

    async def depart() -> None:
        due, piece = 0.0, b"-"
        while piece:
            try:
                piece = await source.read(_PIECE)
            except OSError:
                piece = b""
            lost = sum(chance.random() < _LOSS for _ in range(0, len(piece), _PACKET))
            due = max(due, loop.time() + DELAY) + _AGAIN * lost
            await flight.put((due, piece))

    departing = asyncio.create_task(depart())
    try:
        await land()
    except OSError:
        pass  # the other side is gone
    finally:
        departing.cancel()
        sink.close()


async def _main(host: str, port: int, to_host: str, to_port: int) -> None:
    chance = random.Random(7)

    async def accept(near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        try:
            far_in, far_out = await asyncio.open_connection(to_host, to_port)
        except OSError:
            near_out.close()
            return
        await asyncio.gather(_carry(near_in, far_out, chance), _carry(far_in, near_out, chance))

    server = await asyncio.start_server(accept, host, port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
