"""Ways to break bytes and JSON, for tests that the receiver handles them without an internal error."""

import json
import os
import random
from pathlib import Path
from typing import Any

__all__ = ["ODD", "mutated", "odd", "resident_mib"]

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 62,
    1 << 64,
    -(1 << 63),
    1e308,
    -0.0,
    0.1,
    "",
    "\0",
    "x" * 300,
    "\ud800",
    "é\u202e",
    [],
    [[]] * 9,
    {},
    {"a": {}},
    "NaN",
    "Infinity",
    "job:j@x",
    "../..",
]


def mutated(random_: random.Random, data: bytes) -> bytes:
    """One to four changes of bytes."""
    text = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(text) + 1)
        match random_.randrange(6):
            case 0:
                text[at : at + 1] = bytes([random_.randrange(256)])
            case 1:
                del text[at : at + random_.randint(1, 20)]
            case 2:
                text[at:at] = text[max(0, at - 30) : at]
            case 3:
                text[at:at] = random_.randbytes(random_.randint(1, 12))
            case 4:
                text[at:at] = random_.choice(
                    [b"9" * 400, b"[" * 2_000, b'{"a":', b"NaN", b"1e999", b"\xff\xfe", b"\0"]
                )
            case _:
                del text[at:]
    return bytes(text)


def odd(random_: random.Random, data: bytes) -> bytes:
    """A value, or a key, of the JSON replaced by an odd one."""
    body = json.loads(data)
    holder = body
    while isinstance(holder, dict) and holder:
        key = random_.choice(list(holder))
        if isinstance(holder[key], dict) and random_.random() < 0.6:
            holder = holder[key]
            continue
        if random_.random() < 0.2:
            holder[str(random_.choice(ODD))] = holder.pop(key)
        else:
            holder[key] = random_.choice(ODD)
        break
    return json.dumps(body).encode("utf-8", "surrogatepass")


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
