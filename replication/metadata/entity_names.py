"""Names of users, client ids and topics in paths of the metadata store.

Source: Kafka's Sanitizer: percent-encoding as Java's URLEncoder, but for `*` and spaces, which become %2A and %20. One
difference: the names `.` and `..`, which ZooKeeper accepts in no path, so that Kafka 3.9 cannot store them, are
encoded.
"""

from urllib.parse import quote, unquote


def sanitize_name(name: str) -> str:
    """Return a name as it is in a path."""
    if name in (".", ".."):
        return name.replace(".", "%2E")
    # Java encodes ~, which Python does not.
    return quote(name, safe="").replace("~", "%7E")


def desanitize_name(text: str) -> str:
    """Return the name in a path."""
    return unquote(text)
