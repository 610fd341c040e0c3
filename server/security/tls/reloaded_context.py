"""A TLS context whose files and properties may change at any time: new connections use the new certificates.

Connections that exist keep theirs.
"""

import logging
import os
import ssl
from collections.abc import Callable
from typing import Final

from odradek.properties import PropertyError
from odradek.server.security.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
"""Least time between two checks of the files, each of which takes some 10 us."""

_Version = tuple[tuple[int, int, int] | None, ...]


class ReloadedContext:
    """The context of a listener, or of connections to other brokers. Call it for each connection.

    make: makes a context, and raises PropertyError if the files are not valid: then the last context remains in use
    """

    def __init__(
        self, settings: TlsSettings, make: Callable[[TlsSettings], ssl.SSLContext], monotonic: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._make = make
        self._monotonic = monotonic
        self._checked_s = monotonic()
        self._version = self._find_version()
        self._context = make(settings)

    def __call__(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        now_s = self._monotonic()
        if now_s - self._checked_s >= CHECK_INTERVAL_S:
            self._checked_s = now_s
            version = self._find_version()
            if version != self._version:
                self._version = version
                self._reload()
        return self._context

    def update(self, settings: TlsSettings) -> None:
        """Use the dynamic values of other settings, if they are valid, for new connections."""
        former, self._settings = self._settings, self._settings.with_dynamic_of(settings)
        if not self._settings.has_values_of(former):
            self._version = self._find_version()
            self._reload()

    def _reload(self) -> None:
        files = ",".join(self._files())
        try:
            self._context = self._make(self._settings)
        except PropertyError as error:
            logger.error("changed certificates are not used, and the last ones remain: %s; correct %s", error, files)
        else:
            logger.info("loaded changed certificates or properties files=%s", files)

    def _files(self) -> list[str]:
        return [path for path in (self._settings.keystore_location, self._settings.truststore_location) if path]

    def _find_version(self) -> _Version:
        """Return inode, time and size of each file; None for a file that does not exist."""
        return tuple(map(_find_file_version, self._files()))


def _find_file_version(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
