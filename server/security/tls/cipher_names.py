"""Java's names of cipher suites, which `ssl.cipher.suites` has, and OpenSSL's.

Java uses the names of the IANA registry, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, for which OpenSSL uses
ECDHE-RSA-AES128-GCM-SHA256. The suites of TLS 1.3 have the same names in both.
"""

import re
from typing import Final

_TLS_12: Final = re.compile(r"(?:TLS|SSL)_(?P<exchange>\w+?)_WITH_(?P<cipher>\w+?)(?:_(?P<digest>SHA|SHA256|SHA384))?")


def is_tls_13(name: str) -> bool:
    """Return whether a suite is one of TLS 1.3, whose names have no key exchange."""
    return "_WITH_" not in name


def to_openssl(name: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2 or before. Raises ValueError for any other text."""
    match = _TLS_12.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a cipher suite")
    exchange = match["exchange"].replace("_", "-")
    cipher = re.sub(r"^(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", match["cipher"])
    cipher = re.sub(r"^CHACHA20_POLY1305$", "CHACHA20-POLY1305", cipher)
    # OpenSSL omits the RSA key exchange, the mode CBC of AES, and the digest of CHACHA20-POLY1305.
    cipher = cipher.removesuffix("_CBC").replace("_", "-")
    parts = [] if exchange == "RSA" else [exchange]
    parts.append(cipher)
    if match["digest"] and not cipher.startswith("CHACHA20"):
        parts.append(match["digest"])
    return "-".join(parts)
