"""Fields of the binary log as the texts that the server shows for them. Pure; one value at a time.

Most values never become texts; those do that an Arrow type cannot hold, or that the user reads as another type.
"""

from spark_channel.connectors.mysql.log.rows import DIGIT_BYTES

__all__ = [
    "date_text",
    "datetime_text",
    "decimal_number",
    "decimal_text",
    "fraction",
    "time_text",
    "uuid_text",
]


def date_text(months: int, day: int) -> str:
    """`months`: 13 for each year, as MySQL packs them."""
    return f"{months // 13:04d}-{months % 13:02d}-{day:02d}"


def datetime_text(packed: int, micros: int, digits: int) -> str:
    """`packed`: months, day, hour, minute, second in 17, 5, 5, 6 and 6 bits."""
    days, clock = packed >> 17, packed & 0x1FFFF
    return (
        f"{date_text(days >> 5, days & 31)} {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        f"{fraction(micros, digits)}"
    )


def time_text(packed: int, digits: int) -> str:
    """`packed`: hours, minutes, seconds, microseconds in 10, 6, 6 and 24 bits, with a sign over all."""
    sign, packed = ("-" if packed < 0 else ""), abs(packed)
    clock, micros = packed >> 24, packed & 0xFFFFFF
    return f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}{fraction(micros, digits)}"


def fraction(micros: int, digits: int) -> str:
    return f".{micros:06d}"[: digits + 1] if digits else ""


def decimal_number(data: bytes, digits: int, scale: int) -> int:
    """A packed decimal without its point: groups of nine digits in four bytes, the sign in the first bit."""
    negative = not data[0] & 0x80
    packed = bytearray(data)
    packed[0] ^= 0x80
    if negative:
        packed = bytearray(byte ^ 0xFF for byte in packed)
    number, at = 0, 0
    whole = digits - scale
    for count in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9):
        size = DIGIT_BYTES[count]
        number = number * 10**count + int.from_bytes(packed[at : at + size], "big")
        at += size
    return -number if negative else number


def decimal_text(data: bytes, digits: int, scale: int) -> str:
    number = decimal_number(data, digits, scale)
    text = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{text[:-scale]}.{text[-scale:]}" if scale else sign + text


def uuid_text(data: bytes) -> str:
    """MariaDB keeps the parts of versions 1 to 5 in reverse order, so that times sort."""
    data = data.ljust(16, b"\0")
    if data[6] & 0x80 and 0 < data[8] <= 0x80:
        data = data[12:16] + data[10:12] + data[8:10] + data[6:8] + data[:6]
    text = data.hex()
    return "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])
