"""The listeners of a broker: ports, TLS, SASL, and the limits of connections."""

import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory

from odradek.log.storage import descriptors
from odradek.properties import PropertyError
from odradek.protocol.schema import Message
from odradek.server.config import BrokerConfig, Listener
from odradek.server.config.properties.sasl import SASL_PROTOCOLS
from odradek.server.dispatch import Dispatch
from odradek.server.environment import Environment
from odradek.server.measurements.authentications import AuthenticationCounts
from odradek.server.network.connection import Authenticate, Connection
from odradek.server.network.connection_quotas import Acceptor, ConnectionQuotas
from odradek.server.network.connections import ConnectionRegistry
from odradek.server.network.stalls import find_timeout_ms
from odradek.server.network.transport import KafkaTransport, KafkaTransportFactory, plaintext_writers
from odradek.server.request import RequestContext
from odradek.server.security.tls.settings import TLS_PROTOCOLS
from odradek.server.services import Services
from odradek.server.work.clock import Reactor
from odradek.server.work.listening_port import ListeningPort

if TYPE_CHECKING:
    from odradek.server.measurements.socket_counts import SocketCounts
    from odradek.server.network.sasl import SaslListener
    from odradek.server.security.sasl.mechanisms import MechanismParts
    from odradek.server.security.sasl.reloaded_mechanisms import ReloadedMechanisms
    from odradek.server.security.sasl.token_credentials import TokenSecret
    from odradek.server.security.sasl.unknown_users import UnknownUsers
    from odradek.server.security.tls.reloaded_context import ReloadedContext

logger = logging.getLogger(__name__)

_SIZE_PROPERTIES: Final = (
    ("socket.send.buffer.bytes", socket.SO_SNDBUF),
    ("socket.receive.buffer.bytes", socket.SO_RCVBUF),
)


class ListenError(Exception):
    """A listener cannot be opened. The message is one line."""


_HINTS: Final[Mapping[int, str]] = {
    errno.EADDRINUSE: "stop the process that uses the port or ",
    errno.EADDRNOTAVAIL: "no network interface of this machine has the address: ",
    errno.EACCES: "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE: ",
}
"""Remedies for the failures to listen that configurations cause."""


def open_port(
    reactor: Reactor, listener: Listener, factory: Factory, property_name: str, backlog: int = 50
) -> ListeningPort:
    """Listen on the address of a listener, which a property has. Raises ListenError."""
    # Without a host, listen on all addresses, IPv6 and IPv4 if the machine has both.
    hosts = [listener.host] if listener.host else ["::", ""]
    for host in hosts:
        try:
            return reactor.listenTCP(listener.port, factory, backlog=backlog, interface=host)
        except CannotListenError as error:
            reason = error.socketError
            if host != hosts[-1] and getattr(reason, "errno", None) != errno.EADDRINUSE:
                continue
            number = reason.errno if isinstance(reason, OSError) else None
            why = os.strerror(number) if number else str(reason)
            hint = _HINTS.get(number or 0, "")
            raise ListenError(
                f"cannot listen on {listener.address} ({property_name}={listener.name}): {why}; {hint}change "
                f"{property_name}"
            ) from error
    raise AssertionError("no host to listen on")


class BrokerListeners:
    """The listeners of a broker. Call `bind`, `start` when the broker can serve clients, and `stop`.

    ports: the bound ports
    quotas: the limits of connections
    connections: the open connections
    authentication_counts: of the listeners with TLS or SASL
    socket_counts: of all listeners; empty if nothing uses them

    find_services: returns the parts of the started broker; None before the logs are loaded
    find_dispatch: returns the dispatch of requests, when the first client connects
    on_scarcity: called once, when file descriptors become scarce
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        find_services: Callable[[], Services | None],
        find_dispatch: Callable[[], Dispatch],
        on_scarcity: Callable[[], None],
    ) -> None:
        self.ports: list[ListeningPort] = []
        self._config = config
        self._environment = environment
        self._reactor = environment.reactor
        self._find_services = find_services
        self._find_dispatch = find_dispatch
        self.connections = ConnectionRegistry(self._reactor, self._find_timeout_ms, config.connections_max_idle_ms)
        self.quotas = ConnectionQuotas(
            config,
            self._reactor,
            protected=config.inter_broker_name,
            spare_descriptors=environment.fs.spare_descriptors,
            margin=descriptors.reserve,
            close_least_active=self.connections.close_least_active,
            on_scarcity=on_scarcity,
        )
        self._acceptors: list[Acceptor] = []
        self._tls_contexts: dict[str, ReloadedContext] = {}
        self._authentications: dict[str, tuple[SaslListener, ReloadedMechanisms]] = {}
        self.authentication_counts: dict[str, AuthenticationCounts] = {}
        self.socket_counts: dict[str, SocketCounts] = {}
        self._on_stop: list[Callable[[], None]] = []

    def bind(self) -> tuple[Listener, ...]:
        """Bind the ports without accepting clients; return the advertised listeners. Raises ListenError."""
        bound_ports = {}
        if self._config.metrics_endpoint is not None:
            # Imported here because most brokers count nothing by listener.
            from odradek.server.measurements.socket_counts import SocketCounts

            self.socket_counts = {listener.name: SocketCounts() for listener in self._config.endpoints}
        for listener in self._config.endpoints:
            port, acceptor = self._open(listener)
            self.ports.append(port)
            self._acceptors.append(acceptor)
            bound_ports[listener.name] = port.getHost().port
        return self._config.advertise(bound_ports, self._environment.host_name())

    def start(self) -> None:
        """Accept clients."""
        for acceptor in self._acceptors:
            acceptor.start()
        self.connections.start()

    def update(self, config: BrokerConfig) -> None:
        """Apply changed properties."""
        self.quotas.update(config)
        for listener_name, context in self._tls_contexts.items():
            context.update(config.tls_settings(listener_name))
        for listener_name in self._authentications:
            self._update_authentication(config, listener_name)

    def stop(self) -> None:
        """Close the ports and all connections."""
        for acceptor in self._acceptors:
            acceptor.stop()
        for port in self.ports:
            port.stopListening()
        self.ports.clear()
        self.connections.stop()
        for stop in self._on_stop:
            stop()

    # -- ports -----------------------------------------------------------------------------------------------------

    def _open(self, listener: Listener) -> tuple[ListeningPort, Acceptor]:
        counts = self.socket_counts.get(listener.name)
        factory = KafkaTransportFactory(
            self._make_connection_factory(listener),
            self._first_frame_bytes(listener),
            self.connections,
            plaintext_writers(self._environment, counts),
            counts,
        )
        port = open_port(
            self._reactor,
            listener,
            self._with_tls(listener, factory),
            "listeners",
            self._config.socket_listen_backlog_size,
        )
        port.stopReading()
        self._set_buffer_sizes(port)
        acceptor = factory.acceptor = self.quotas.listen(listener.name, port)
        return port, acceptor

    def _first_frame_bytes(self, listener: Listener) -> int:
        """Return the maximum size of the first requests of a connection."""
        if listener.protocol in SASL_PROTOCOLS:
            return int(self._config.listener_value(listener.name, "sasl.server.max.receive.size"))
        return self._config.socket_request_max_bytes

    def _set_buffer_sizes(self, port: ListeningPort) -> None:
        """Set the buffer sizes of the listening socket, which accepted connections inherit."""
        for name, option in _SIZE_PROPERTIES:
            size_bytes = self._config.value(name)
            # By default the operating system adapts the buffers to a connection; Kafka's default would limit them.
            if name in self._config.explicit and size_bytes > 0:
                port.socket.setsockopt(socket.SOL_SOCKET, option, size_bytes)

    # -- connections -----------------------------------------------------------------------------------------------

    def _with_tls(self, listener: Listener, plain: KafkaTransportFactory) -> Factory:
        """Return the factory of a listener's connections, with TLS if its security protocol has it."""
        if listener.protocol not in TLS_PROTOCOLS:
            return plain
        # Imported here because most brokers need neither.
        from odradek.server.network.tls import TlsTransportFactory
        from odradek.server.security.tls.contexts import make_principal_mapper, make_server_context
        from odradek.server.security.tls.reloaded_context import ReloadedContext

        settings = self._config.tls_settings(listener.name)
        try:
            context = ReloadedContext(settings, make_server_context, self._environment.monotonic)
            find_principal = None if listener.protocol != "SSL" else make_principal_mapper(settings).find_principal
        except PropertyError as error:
            raise ListenError(str(error)) from error
        self._tls_contexts[listener.name] = context
        return TlsTransportFactory(
            plain,
            context,
            self._environment,
            find_principal,
            self._count_authentications(listener.name),
            self.socket_counts.get(listener.name),
        )

    def _count_authentications(self, listener_name: str) -> AuthenticationCounts:
        return self.authentication_counts.setdefault(listener_name, AuthenticationCounts())

    def _make_connection_factory(self, listener: Listener) -> Callable[[KafkaTransport], Connection]:
        authenticate = self._make_authentication(listener)

        def make(transport: KafkaTransport) -> Connection:
            context = RequestContext(
                transport.peer_host, listener.name, listener.protocol, client_port=transport.peer_port
            )
            return Connection(transport, self._find_dispatch(), context, authenticate)

        return make

    def _make_authentication(self, listener: Listener) -> Authenticate | None:
        """Return the function that begins the authentication of a connection; None for a listener without SASL."""
        if listener.protocol not in SASL_PROTOCOLS:
            return None
        # Imported here because most brokers need no SASL.
        from odradek.server.network.sasl import SaslListener
        from odradek.server.security.sasl.reloaded_mechanisms import ReloadedMechanisms
        from odradek.server.security.sasl.settings import make_sasl_settings

        environment = self._environment
        try:
            settings = make_sasl_settings(self._config, listener.name)
            mechanisms = ReloadedMechanisms(settings, self._mechanism_parts)
        except PropertyError as error:
            raise ListenError(str(error)) from error
        self._on_stop.append(mechanisms.stop)
        sasl = SaslListener(
            settings,
            mechanisms.by_name,
            lambda: Dispatch(self._services, self._services.apis),
            self._reactor,
            environment.now_ms,
            self._config.socket_request_max_bytes,
            self._count_authentications(listener.name),
        )
        self._authentications[listener.name] = sasl, mechanisms
        return sasl.authenticate

    def _update_authentication(self, config: BrokerConfig, listener_name: str) -> None:
        """Use the mechanisms of a changed configuration for new authentications."""
        from odradek.server.security.sasl.settings import make_sasl_settings

        sasl, mechanisms = self._authentications[listener_name]
        try:
            settings = make_sasl_settings(config, listener_name)
        except PropertyError as error:
            logger.error("changed SASL mechanisms are not used, and the last ones remain: %s", error)
            return
        mechanisms.update(settings)
        sasl.mechanisms = mechanisms.by_name

    @cached_property
    def _mechanism_parts(self) -> "MechanismParts":
        from odradek.server.security.sasl.mechanisms import MechanismParts

        environment = self._environment
        return MechanismParts(
            lambda: self._services.entity_configs.configs,
            self._find_token,
            environment.random_source.getrandbits,
            self._find_unknown_users,
            environment.now_ms,
            environment.monotonic,
            self._reactor.callLater,
            environment.run_request,
            self._on_stop.append,
        )

    def _find_unknown_users(self) -> "UnknownUsers":
        unknown_users = self._services.unknown_users
        assert unknown_users is not None, "a listener has SASL"
        return unknown_users

    def _find_token(self, token_id: str) -> "TokenSecret | None":
        """Return a valid delegation token."""
        tokens = self._services.tokens
        token = None if tokens is None else tokens.cache.tokens.get(token_id)
        if tokens is None or token is None or token.has_expired(self._environment.now_ms()):
            return None
        # Imported by SCRAM, which calls this.
        from odradek.server.security.sasl.token_credentials import TokenSecret

        return TokenSecret(token.owner, token.expires_ms, tokens.cache.compute_hmac(token_id))

    @property
    def _services(self) -> Services:
        services = self._find_services()
        assert services is not None, "no client is accepted before the logs are loaded"
        return services

    def _find_timeout_ms(self, request: Message | None) -> int:
        services = self._find_services()
        return find_timeout_ms(None if services is None else services.groups_in_use, request)
