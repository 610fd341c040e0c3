"""The environment variable KAFKA_OPTS of Kafka's start scripts, as far as it has credentials for ZooKeeper.

Kafka takes these from the section Client of a JAAS file, which is a system property of the JVM, so that a service that
starts Kafka can start Odradek unchanged.
"""

from typing import Final

from odradek.properties import HIDDEN, PropertyError
from odradek.server.security.sasl.jaas import JaasError
from odradek.server.security.sasl.jaas_file import find_system_properties, format_jaas, parse_jaas_section

JAAS_PROPERTY: Final = "zookeeper.sasl.jaas.config"
LOGIN_CONFIG: Final = "java.security.auth.login.config"


def find_zookeeper_login(kafka_opts: str) -> str | None:
    """Return the value of `zookeeper.sasl.jaas.config` that KAFKA_OPTS results in, None without one.

    Raises PropertyError for a file that cannot be read or is malformed.
    """
    try:
        properties = find_system_properties(kafka_opts)
    except ValueError as error:
        # The options may have passwords, such as those of Java's key stores.
        raise PropertyError("KAFKA_OPTS", HIDDEN, str(error)) from None
    # Java: a second equals sign replaces all other files; the location may be a URL.
    path = properties.get(LOGIN_CONFIG, "").removeprefix("=").removeprefix("file:")
    if not path or properties.get("zookeeper.sasl.client", "true").lower() == "false":
        return None
    name = f"{LOGIN_CONFIG} (KAFKA_OPTS)"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PropertyError(name, path, f"cannot be read: {reason}") from None
    try:
        module = parse_jaas_section(text, properties.get("zookeeper.sasl.clientconfig", "Client"))
    except JaasError as error:
        raise PropertyError(name, path, str(error)) from None
    return None if module is None else format_jaas(module.class_name, module.options)
