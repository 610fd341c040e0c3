"""The connection of a command: options, environment variables, and the profile file.

The profile file is TOML, `profiles.toml` in `$XDG_CONFIG_HOME/odradek` or `~/.config/odradek`, with a table for each
cluster. The names are those of Kafka's clients:

    [default]
    bootstrap.servers = "127.0.0.1:9092"

    [production]
    bootstrap.servers = "broker-1:9093,broker-2:9093"
    security.protocol = "SASL_SSL"
    ssl.truststore.type = "PEM"
    ssl.truststore.location = "/etc/kafka/ca.pem"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.jaas.config = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'
    schema.registry.url = "https://registry:8081"

`--profile NAME` or ODRADEK_PROFILE selects a table; otherwise the table `default` is used, unless the command has
`--bootstrap-server`, so that credentials never reach another cluster by accident.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity, parse_addresses
from odradek.tools.kafka.similar_names import find_similar, format_suggestion

DEFAULT_PROFILE: Final = "default"
DEFAULT_SERVERS: Final = "127.0.0.1:9092"
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
SCHEMA_REGISTRY_URL: Final = "schema.registry.url"
_CONNECTION_NAMES: Final = (
    BOOTSTRAP_SERVERS,
    "security.protocol",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.jaas.config",
    SCHEMA_REGISTRY_URL,
)
_MISSPELT_RATIO: Final = 0.9
"""No two properties of Kafka's clients are as similar, unless both are in `_CONNECTION_NAMES`."""
_NO_HOME: Final = "/nonexistent"


class ProfileError(Exception):
    """An option, the profile file or the file of `--command-config` is invalid. The message is one line.

    similar: the nearest names of a profile that does not exist
    """

    def __init__(self, message: str, similar: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.similar = similar


class Connection(NamedTuple):
    """Addresses of a cluster, and the properties of a client with Kafka's names, except `bootstrap.servers`."""

    addresses: list[Address]
    properties: Mapping[str, str]

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses as `host:port,...`."""
        return ",".join(map(str, self.addresses))

    @property
    def schema_registry_url(self) -> str | None:
        """Return the schema registry of the profile."""
        return self.properties.get(SCHEMA_REGISTRY_URL)


def find_connection(
    bootstrap_server: str | None,
    command_config: str | None,
    profile: str | None,
    environment: Mapping[str, str],
) -> Connection:
    """Return the connection that the options select. Raises ProfileError."""
    selected = profile or environment.get("ODRADEK_PROFILE") or None
    values: dict[str, str] = {}
    if selected is not None or bootstrap_server is None:
        values.update(_read_profile(selected, find_profile_file(environment)))
    if command_config is not None:
        values.update(_read_command_config(command_config))
    source = f"--bootstrap-server {bootstrap_server}"
    servers = values.pop(BOOTSTRAP_SERVERS, DEFAULT_SERVERS)
    if bootstrap_server is None:
        source, bootstrap_server = f"{BOOTSTRAP_SERVERS} {servers}", servers
    try:
        return Connection(parse_addresses(bootstrap_server), values)
    except ValueError as error:
        raise ProfileError(f"{source}: {error}") from None


def find_misspelt(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the properties that are almost one that selects or secures the connection, each with that name.

    Without `security.protocol` a client uses no encryption. Other unknown properties are those of other clients.
    """
    unknown = [name for name in properties if name not in _CONNECTION_NAMES]
    if not unknown:
        return []
    # Imported here because most profiles do not need it.
    from difflib import get_close_matches

    nearest = {name: get_close_matches(name.lower(), _CONNECTION_NAMES, 1, _MISSPELT_RATIO) for name in unknown}
    return [(name, similar) for name, found in nearest.items() for similar in found]


def make_security(connection: Connection) -> ClientSecurity:
    """Return TLS and SASL of a connection. Raises ProfileError."""
    if connection.properties.get("security.protocol", "PLAINTEXT") == "PLAINTEXT":
        return ClientSecurity()
    # Imported here because it takes longer than the rest of a command without security.
    from odradek.properties import PropertyError
    from odradek.tools.kafka.connection.client_security import make_client_security

    try:
        return make_client_security(connection.properties)
    except (PropertyError, ValueError) as error:
        raise ProfileError(str(error)) from None


def find_profile_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the profile file."""
    configuration = environment.get("XDG_CONFIG_HOME")
    if not configuration:
        try:
            configuration = str(Path(environment.get("HOME", "~")).expanduser() / ".config")
        except RuntimeError:
            # The user of a container may have no home directory.
            configuration = _NO_HOME
    return Path(configuration) / "odradek" / "profiles.toml"


def list_profiles(environment: Mapping[str, str]) -> list[str]:
    """Return the names in the profile file. Raises OSError, ValueError."""
    with find_profile_file(environment).open("rb") as opened:
        return sorted(tomllib.load(opened))


def _read_profile(selected: str | None, file: Path) -> dict[str, str]:
    """Return the properties of a profile; without a selection those of `default`, which need not exist."""
    try:
        with file.open("rb") as opened:
            profiles = tomllib.load(opened)
    except FileNotFoundError:
        if selected is None:
            return {}
        raise ProfileError(f"--profile {selected}: {file} does not exist") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    name = selected or DEFAULT_PROFILE
    if name not in profiles:
        if selected is None:
            return {}
        similar = find_similar(name, profiles)
        raise ProfileError(f"--profile {name}: {file} has no such profile{format_suggestion(similar)}", similar)
    if not isinstance(profiles[name], dict):
        raise ProfileError(f"{file}: {name} must be a table")
    return dict(_flatten(profiles[name], ""))


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield f"{prefix}{name}", str(value).lower()
        elif isinstance(value, list):
            yield f"{prefix}{name}", ",".join(map(str, value))
        else:
            yield f"{prefix}{name}", str(value)


def _read_command_config(path: str) -> Mapping[str, str]:
    # Imported here because the package imports the declarations of all properties.
    from odradek.server.config.properties_file import read_properties

    try:
        with open(path, "rb") as file:
            return read_properties(file.read())
    except OSError as error:
        raise ProfileError(f"--command-config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileError(f"--command-config {path}: {error}") from None
