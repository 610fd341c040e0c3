"""CRC-32C, the checksum of record batches (RFC 3720, Castagnoli polynomial).

On import, the `crc32c` package reads its own version from importlib.metadata, which takes longer than all other
imports of the protocol package. Therefore only its C extension is loaded. If the package has another layout, it is
imported as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType

_Checksum = Callable[..., int]


def _extension() -> ModuleType | None:
    package = PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = spec.loader.create_module(spec)
    if module is not None:
        spec.loader.exec_module(module)
    return module


def _load() -> _Checksum:
    try:
        function: _Checksum | None = getattr(_extension(), "crc32c", None)
    except ImportError:
        function = None
    if function is not None:
        return function
    import crc32c as package

    return package.crc32c


crc32c: _Checksum = _load()
"""crc32c(buffer, value=0): the CRC of a contiguous buffer, without a copy; `value` continues an earlier CRC."""
