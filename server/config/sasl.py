"""Properties of SASL. A mechanism of a listener can have its own: `listener.name.<listener>.<mechanism>.<property>`."""

from typing import Final

from odradek.properties import PropertySet, class_name, integer, long, password, string, string_list

LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""The mechanisms of this broker, with Kafka's login modules."""

MECHANISM_PROPERTIES: Final = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.server.callback.handler.class",
)
"""Properties that a mechanism of a listener can have."""


class SaslProperties(PropertySet):
    """Authentication of clients, and of brokers by each other."""

    sasl_enabled_mechanisms = string_list(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        unique=True,
        may_be_empty=False,
        doc=f"Mechanisms that clients may use on a listener with SASL, of: {', '.join(LOGIN_MODULES)}.",
    )
    sasl_jaas_config = password(
        "sasl.jaas.config",
        doc="Login module with its options, as in Java: the users of PLAIN as user_<name>, username and password with "
        "which the broker connects to others. Its name must have the prefix of a listener and a mechanism: "
        "listener.name.<listener>.<mechanism>.sasl.jaas.config.",
    )
    sasl_mechanism_inter_broker_protocol = string(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        doc="Mechanism with which the broker connects to others.",
    )
    sasl_server_max_receive_size = integer(
        "sasl.server.max.receive.size",
        524_288,
        minimum=1,
        doc="Maximum size of a request before the client is authenticated; a larger one closes its connection.",
    )
    sasl_server_callback_handler_class = class_name(
        "sasl.server.callback.handler.class",
        None,
        doc="Java class that checks credentials, which cannot be loaded: it must not be set.",
    )
    connections_max_reauth_ms = long(
        "connections.max.reauth.ms",
        0,
        doc="Time after which a client must authenticate itself again (KIP-368); 0 for never.",
    )
