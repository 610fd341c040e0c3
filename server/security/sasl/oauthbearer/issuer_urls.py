"""URLs of an issuer of tokens: `file:`, `http:` or `https:`."""

from urllib.parse import unquote, urlsplit

from odradek.properties import HIDDEN


def find_file(url: str) -> str | None:
    """Return the path in a `file:` URL; None for an `http:` or `https:` URL. Raises ValueError for another."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return unquote(parts.path)
    # The port is parsed only now.
    if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
        return None
    raise ValueError("must be a URL with file, http or https")


def describe_url(url: str) -> str:
    """Return a URL for logs: without user, password and query, which may be secrets; HIDDEN if they are not found."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else parts.path


def read_file(path: str, max_bytes: int) -> bytes:
    """Return the content of a file, or its first `max_bytes + 1` bytes. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(max_bytes + 1)
