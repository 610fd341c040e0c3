"""The broker's configuration: Kafka's names, types, defaults and update modes.

- `broker`: all broker properties as one set, with derived values and validation
- `properties`: the properties, by subject
- `loading`: configuration files, overrides and warnings
- `properties_file`: Java's .properties syntax
- `listeners`: listeners and advertised addresses
- `kafka_opts`: credentials for ZooKeeper in the environment variable KAFKA_OPTS
- `reference`: `odradek config properties` and docs/configuration.md
"""

from odradek.server.config.broker import THEMES, BrokerConfig
from odradek.server.config.listeners import Listener
from odradek.server.config.loading import InvalidConfigError, LoadedConfig, load_config, parse_config

__all__ = ["THEMES", "BrokerConfig", "InvalidConfigError", "Listener", "LoadedConfig", "load_config", "parse_config"]
