"""Listeners, and the addresses that clients connect to.

Sources: Kafka's documentation, "Broker Configs: listeners, advertised.listeners, listener.security.protocol.map";
KIP-103 (listener names), KIP-797 (one port for an IPv4 and an IPv6 listener).
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from odradek.properties import PropertyError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
WILDCARD_HOSTS = ("", "0.0.0.0", "::")

_FORM = "NAME://host:port, with an IPv6 host in brackets"
_LISTENER = re.compile(r"([^:/\s]+)://(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([\w.-]*)):(\d{1,5})")
_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}")


class Listener(NamedTuple):
    """A listener: name in capitals, security protocol, host without brackets, port."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`, with an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def parse_protocol_map(property_name: str, text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL,...` to security protocols by listener name. Raises PropertyError."""
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip() for part in entry.partition(":"))
        if not colon or not name:
            raise PropertyError(property_name, text, f"{entry} is not NAME:PROTOCOL")
        if protocol not in SECURITY_PROTOCOLS:
            raise PropertyError(property_name, text, f"{protocol} is not one of: {', '.join(SECURITY_PROTOCOLS)}")
        if name.upper() in protocols:
            raise PropertyError(property_name, text, f"{name} is named twice")
        protocols[name.upper()] = protocol
    return protocols


def parse_listeners(
    property_name: str, entries: Iterable[str], protocols: dict[str, str], *, distinct_ports: bool
) -> tuple[Listener, ...]:
    """Parse the listeners of a property. Raises PropertyError for an invalid form, an unknown name, or a conflict."""
    listeners: list[Listener] = []
    for entry in entries:
        match = _LISTENER.fullmatch(entry)
        if match is None or int(match[4]) > 65535:
            raise PropertyError(property_name, entry, f"must be {_FORM}")
        name = match[1].upper()
        if name not in protocols:
            raise PropertyError(
                property_name, entry, f"listener.security.protocol.map has no security protocol for {name}"
            )
        listeners.append(Listener(name, protocols[name], match[2] or match[3] or "", int(match[4])))
    _refuse_same_names(property_name, listeners)
    if distinct_ports:
        _refuse_same_ports(property_name, listeners)
    return tuple(listeners)


def parse_http_listener(property_name: str, text: str) -> Listener | None:
    """Parse `host:port`, with or without `http://`; None if the text is empty. Raises PropertyError."""
    if not text:
        return None
    match = _LISTENER.fullmatch(text if text.startswith("http://") else f"http://{text}")
    if match is None or int(match[4]) > 65535:
        raise PropertyError(property_name, text, "must be host:port, with an IPv6 host in brackets")
    return Listener("HTTP", "PLAINTEXT", match[2] or match[3] or "", int(match[4]))


def _refuse_same_names(property_name: str, listeners: list[Listener]) -> None:
    names: set[str] = set()
    for listener in listeners:
        if listener.name in names:
            raise PropertyError(property_name, _format_listeners(listeners), f"{listener.name} is named twice")
        names.add(listener.name)


def _refuse_same_ports(property_name: str, listeners: list[Listener]) -> None:
    """Raise PropertyError if listeners share a port, unless one has an IPv4 and the other an IPv6 address."""
    by_port: dict[int, list[str]] = {}
    for listener in listeners:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener.host)
    for port, hosts in by_port.items():
        if len(hosts) == 1:
            continue
        families = sorted("6" if ":" in host else "4" if _IPV4.fullmatch(host) else "?" for host in hosts)
        if families != ["4", "6"]:
            raise PropertyError(property_name, _format_listeners(listeners), f"port {port} is used twice")


def refuse_wildcards(property_name: str, listeners: Iterable[Listener]) -> None:
    """Raise PropertyError for an address that clients cannot connect to."""
    for listener in listeners:
        if listener.host in WILDCARD_HOSTS and listener.host:
            raise PropertyError(
                property_name,
                str(listener),
                f"clients cannot connect to {listener.host}; set advertised.listeners to a reachable address",
            )


def find_open_listeners(listeners: Iterable[Listener]) -> list[Listener]:
    """Return the listeners without TLS and SASL that other machines may be able to connect to."""
    return [listener for listener in listeners if listener.protocol == "PLAINTEXT" and not _is_loopback(listener.host)]


def _is_loopback(host: str) -> bool:
    # An import of `ipaddress` takes 3 ms of a start.
    return host in ("localhost", "::1") or (_IPV4.fullmatch(host) is not None and host.startswith("127."))


def resolve_advertised(listeners: Iterable[Listener], port_of: Callable[[str], int], host: str) -> tuple[Listener, ...]:
    """Return the advertised listeners with bound ports instead of port 0, and `host` instead of an empty host."""
    return tuple(
        listener._replace(host=listener.host or host, port=listener.port or port_of(listener.name))
        for listener in listeners
    )


def _format_listeners(listeners: Iterable[Listener]) -> str:
    return ",".join(str(listener) for listener in listeners)
