"""Certificates and properties for tests of TLS."""

from pathlib import Path


def tls_properties(directory: Path, **more: str) -> dict[str, str]:
    """Return the properties of a broker with the files of `write_test_certificates`, and `more` with underscores."""
    return {
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }
