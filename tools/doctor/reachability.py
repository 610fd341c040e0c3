"""Advertised addresses of the brokers: each step of a connection from this machine.

The metadata has the addresses of the listener on which the client is connected; with them the whole connection is
tried. Those of the other listeners are in the brokers' configurations; with them no login is tried, because the
credentials of this client are for another listener.
"""

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from odradek.server.config.listeners import SECURITY_PROTOCOLS, WILDCARD_HOSTS
from odradek.tools.doctor.findings import Finding, State, name_broker
from odradek.tools.kafka.connection.connection_errors import NoResponseError, StepError
from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity, WireClient

if TYPE_CHECKING:
    import ssl

CHECK: Final = "advertised address"
_FIX_ADDRESS: Final = "set advertised.listeners to an address that clients can reach"

Connect = Callable[[Address, ClientSecurity], WireClient]


class AdvertisedListener(NamedTuple):
    """A listener of a broker's configuration. `protocol` is None if it cannot be derived."""

    name: str
    address: Address
    protocol: str | None


def check_connection(
    broker: int, address: Address, bootstrap: Address, connect: Callable[[], WireClient]
) -> tuple[WireClient | None, Finding]:
    """Connect to the advertised address of a broker; return the connection, None without one, and the finding."""
    try:
        client = connect()
    except NoResponseError as error:
        return None, _report_failure(broker, address, error)
    return client, _judge_address(broker, address, bootstrap)


def check_listener(broker: int, listener: AdvertisedListener, security: ClientSecurity, connect: Connect) -> Finding:
    """Try the address of a listener other than that of this client, without a login."""
    subject = name_broker(broker)
    label = f"listener {listener.name} {listener.address}"
    if listener.protocol is None:
        return Finding(State.UNCHECKED, subject, CHECK, f"{label}: its security protocol is not in the configuration")
    has_tls = listener.protocol.endswith("SSL")
    context = (security.tls_context or _make_lenient_context()) if has_tls else None
    try:
        connect(listener.address, ClientSecurity(context)).close()
    except NoResponseError as error:
        reason, hint = _split(error)
        fix = f"correct advertised.listeners, unless this machine should not reach it{f'; {hint}' if hint else ''}"
        return Finding(State.WARNING, subject, CHECK, f"{label} is not reachable from here: {reason}", fix)
    steps = "name lookup, connection, TLS, API" if has_tls else "name lookup, connection, API"
    notes = [
        *(["the certificate was not verified"] if has_tls and security.tls_context is None else []),
        *(["no login was tried"] if listener.protocol.startswith("SASL") else []),
    ]
    return Finding(State.OK, subject, CHECK, "; ".join([f"{label}: {steps}", *notes]))


def parse_listeners(properties: Mapping[str, str | None]) -> Iterator[AdvertisedListener]:
    """Iterate over the advertised listeners in the configuration of a broker."""
    protocols = dict(
        part.strip().rpartition(":")[::2]
        for part in (properties.get("listener.security.protocol.map") or "").split(",")
    )
    text = properties.get("advertised.listeners") or properties.get("listeners") or ""
    hidden = {name.strip() for name in (properties.get("controller.listener.names") or "").split(",")}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, address = part.partition("://")
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        # The broker replaces all interfaces and port 0; the configuration does not have the results.
        if host not in WILDCARD_HOSTS and port.isdecimal() and int(port) and name not in hidden:
            protocol = protocols.get(name, name if name in SECURITY_PROTOCOLS else None)
            yield AdvertisedListener(name, Address(host, int(port)), protocol)


def _make_lenient_context() -> "ssl.SSLContext":
    """Return a context that accepts any certificate, because this client has no trust store for the listener."""
    # Imported here because plaintext does not need it.
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _report_failure(broker: int, address: Address, error: NoResponseError) -> Finding:
    reason, hint = _split(error)
    fix = f"{hint}; otherwise {_FIX_ADDRESS}" if hint else _FIX_ADDRESS
    return Finding(State.PROBLEM, name_broker(broker), CHECK, f"{address} is not reachable from here: {reason}", fix)


def _split(error: NoResponseError) -> tuple[str, str]:
    if isinstance(error, StepError):
        return f"{error.step}: {error.reason}", error.hint
    return str(error), ""


def _judge_address(broker: int, address: Address, bootstrap: Address) -> Finding:
    subject = name_broker(broker)
    if _is_local(address.host):
        fact = f"{address} is reachable from this machine only"
        if not _is_local(bootstrap.host):
            fix = f"clients that connect to {bootstrap} are sent to their own machine: {_FIX_ADDRESS}"
            return Finding(State.PROBLEM, subject, CHECK, fact, fix)
        fix = f"if clients on other machines shall connect, {_FIX_ADDRESS}"
        return Finding(State.WARNING, subject, CHECK, fact, fix)
    return Finding(State.OK, subject, CHECK, f"{address}: name lookup, connection, login, API")


def _is_local(host: str) -> bool:
    """True for a name or an address that means another machine on each machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        return name == "localhost" or name.endswith(".localhost") or name.startswith("localhost.")
    return address.is_loopback or address.is_unspecified or address.is_link_local
