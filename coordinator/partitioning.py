"""Partition of an internal topic for a key."""


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`, which is over UTF-16 code units, as a signed 32-bit integer."""
    value = 0
    if text.isascii():
        for code_unit in text.encode("ascii"):
            value = (31 * value + code_unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(units), 2):
            value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def utf16_length(text: str) -> int:
    """Return Java's `String.length`: UTF-16 code units; a character above U+FFFF has two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2


def partition_for(key: str, partition_count: int) -> int:
    """Return the partition of an internal topic for a group id or transactional id.

    Kafka: `Utils.abs(hashCode) % count`, where the absolute value of -2^31 is 0.
    """
    hashed = java_string_hash(key)
    return 0 if hashed == -0x80000000 else abs(hashed) % partition_count
