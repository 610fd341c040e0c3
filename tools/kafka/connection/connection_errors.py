"""The failed step of a connection to a broker, and what to try."""

import socket
from collections.abc import Sequence
from typing import Final

NAME: Final = "name lookup"
CONNECTION: Final = "connection"
TLS: Final = "TLS handshake"
SASL: Final = "SASL authentication"
API: Final = "API request"

_NO_TLS: Final = "the listener has no TLS, or the port is that of another program: try security.protocol=PLAINTEXT"
_PLAINTEXT_REASONS: Final = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING")
"""OpenSSL's reasons if a port without TLS sends bytes or closes the connection."""
_NEEDS_TLS: Final = (
    "if this is a listener with TLS or SASL, set security.protocol in a profile or in the file of --command-config"
)


class NoResponseError(Exception):
    """The broker cannot be reached, or its response cannot be read. The message is one line."""


class UnsupportedRequestError(NoResponseError):
    """The broker serves no version of a request with these contents."""


class InvalidRequestError(Exception):
    """A value is not permitted in a request: a number out of range, or no Unicode text. The message is one line."""


class StepError(NoResponseError):
    """A step of a connection failed.

    address: the broker's, as host:port
    step: NAME, CONNECTION, TLS, SASL or API
    reason: the error
    hint: what to try
    """

    def __init__(self, address: str, step: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{address} does not answer: {step}: {reason}{f' ({hint})' if hint else ''}")
        self.address = address
        self.step = step
        self.reason = reason
        self.hint = hint


class NoAddressError(NoResponseError):
    """None of several addresses answers.

    failures: the error of each
    """

    def __init__(self, failures: Sequence[NoResponseError]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = failures


def explain_failed_connect(address: str, error: Exception) -> StepError:
    """Return the error of a connection that could not be made, before any request."""
    # Imported here, as in the other functions, because commands without TLS do not need it.
    import ssl

    reason = _describe(error)
    if isinstance(error, socket.gaierror):
        return StepError(address, NAME, reason, "check the host name, DNS and /etc/hosts")
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_MISMATCHES:
            hint = "use a host name that the broker's certificate contains"
        else:
            hint = "ssl.truststore.location must contain the authority of the broker's certificate"
        return StepError(address, TLS, reason, hint)
    if isinstance(error, ssl.SSLError):
        is_plaintext = error.reason in _PLAINTEXT_REASONS or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        return StepError(address, TLS, reason, _NO_TLS if is_plaintext else "")
    if isinstance(error, TimeoutError):
        return StepError(address, CONNECTION, "no answer in time", "check the address, the network and firewalls")
    if isinstance(error, ConnectionRefusedError):
        return StepError(address, CONNECTION, reason, "is the broker running, and is the port right?")
    return StepError(address, CONNECTION, reason, "check the address and the network")


def explain_failed_tls(address: str, error: Exception) -> StepError:
    """Return the error of a TLS handshake."""
    import ssl

    if isinstance(error, ssl.SSLError):
        return explain_failed_connect(address, error)
    return StepError(address, TLS, _describe(error), _NO_TLS)


def explain_failed_request(
    address: str, error: Exception, number: int, *, has_tls: bool, has_sasl: bool = False
) -> StepError:
    """Return the error of a request; `number` is 1 for the first request on the connection."""
    import ssl

    if isinstance(error, ssl.SSLError):
        hint = "the broker refused the certificate of this client, or requires one: see ssl.keystore.location"
        return StepError(address, TLS, _describe(error), hint)
    reason = "no response in time" if isinstance(error, TimeoutError) else _describe(error)
    if number == 1 and has_tls:
        return StepError(address, API, reason, "does the broker require a certificate of this client?")
    if number == _AFTER_VERSIONS and not has_sasl and not isinstance(error, TimeoutError):
        # A listener with SASL serves ApiVersions before the authentication.
        protocol = "SASL_SSL" if has_tls else "SASL_PLAINTEXT"
        return StepError(address, API, reason, f"if the listener has SASL, set security.protocol={protocol}")
    return StepError(address, API, reason, _NEEDS_TLS if number == 1 else "")


_AFTER_VERSIONS: Final = 2
"""Number of the request after ApiVersions."""

_HOST_MISMATCHES: Final = (62, 64)
"""OpenSSL's codes for a certificate of another host name or address."""


def _describe(error: Exception) -> str:
    import ssl

    if isinstance(error, ssl.SSLError):
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or ""
        return reason.lower().replace("_", " ") or str(error)
    return (isinstance(error, OSError) and error.strerror) or str(error)
