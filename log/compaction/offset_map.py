"""Offset map: the last offset of each key in the dirty part of a log, within bounded memory."""

from collections.abc import Callable

_DIGEST_BYTES = 16
# Memory of an entry in a Python dictionary: key, integer and slot, including free slots after a resize.
_ENTRY_BYTES = 200


class OffsetMap:
    """Map from a key to its last offset. Of a key of 16 bytes or more the MD5 digest is stored, as Kafka does for all.

    `limit_bytes` bounds the memory, which is allocated as keys are added. `latest_offset` is the last mapped offset of
    the log; -1 before the first.
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
        """Set the last offset of a key. Offsets must be passed in ascending order."""
        self._offsets[key if len(key) < _DIGEST_BYTES else self._digest(key)] = offset

    def get(self, key: bytes) -> int:
        """Return the last offset of a key; -1 if it is not in the map."""
        return self._offsets.get(key if len(key) < _DIGEST_BYTES else self._digest(key), -1)


def _md5() -> Callable[[bytes], bytes]:
    # Imported on first use to keep the broker's start fast.
    from hashlib import md5

    return lambda key: md5(key, usedforsecurity=False).digest()
