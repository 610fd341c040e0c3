"""The last offset of each key, within a bounded memory: what compaction decides by."""

from collections.abc import Callable

_DIGEST_BYTES = 16
# What an entry takes in a Python dictionary: key, number and slot, with the room left by growth.
_ENTRY_BYTES = 200


class OffsetMap:
    """From key to the last offset it was seen at. Long keys are kept as their MD5, as Kafka does.

    `limit_bytes` bounds the memory, of which nothing is taken before there are keys. `latest_offset` is the offset up
    to which the log was mapped, -1 at first.
    """

    __slots__ = ("_digest", "_offsets", "latest_offset", "max_entries")

    def __init__(self, limit_bytes: int, load_factor: float = 0.9) -> None:
        self.max_entries = max(1, int(limit_bytes * load_factor / _ENTRY_BYTES))
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}
        self._digest = _md5()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.max_entries

    def put(self, key: bytes, offset: int) -> None:
        """Offsets must come in ascending order."""
        self._offsets[key if len(key) < _DIGEST_BYTES else self._digest(key)] = offset

    def get(self, key: bytes) -> int:
        """-1 for a key that was not seen."""
        return self._offsets.get(key if len(key) < _DIGEST_BYTES else self._digest(key), -1)


def _md5() -> Callable[[bytes], bytes]:
    # Imported here because few starts of a broker need it.
    from hashlib import md5

    return lambda key: md5(key, usedforsecurity=False).digest()
