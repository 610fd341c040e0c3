"""The broker's configuration: Kafka's names, types, defaults and update modes.

- `broker`: all broker properties as one set, with derived values and validation
- `loading`: configuration files, overrides and warnings
- `properties_file`: Java's .properties syntax
- `listeners`: listeners and advertised addresses
- `network`: properties of listeners, connections and requests
- `storage`: properties of data directories, segments, retention and compaction
- `cluster`: properties of identity, topic creation and replication
- `groups`: properties of consumer groups and committed offsets
- `transactions`: properties of transactions
- `security`: properties of TLS
- `authorization`: properties of authorization
- `sasl`: properties of SASL
- `oauth_tokens`: properties of the tokens of brokers (OAUTHBEARER)
- `passwords`: properties of the encryption of passwords in the metadata store
- `delegation_tokens`: properties of delegation tokens
- `event_log`: properties of the log of events
- `telemetry`: properties of the metrics that clients push
- `zookeeper`: properties of the connection to ZooKeeper
- `kafka_opts`: credentials for ZooKeeper in the environment variable KAFKA_OPTS
- `accepted`: properties that are accepted without effect
- `reasons`: reasons why properties have no effect
- `reference`: `odradek config properties` and docs/configuration.md
"""

from odradek.server.config.broker import THEMES, BrokerConfig
from odradek.server.config.listeners import Listener
from odradek.server.config.loading import InvalidConfigError, LoadedConfig, load_config, parse_config

__all__ = ["THEMES", "BrokerConfig", "InvalidConfigError", "Listener", "LoadedConfig", "load_config", "parse_config"]
