"""The broker's configuration: Kafka's names, types, defaults and update modes, declared once each by theme."""

from odradek.server.config.broker import THEMES, BrokerConfig
from odradek.server.config.listeners import Listener
from odradek.server.config.loading import InvalidConfigError, Loaded, config_of, load_config

__all__ = ["THEMES", "BrokerConfig", "InvalidConfigError", "Listener", "Loaded", "config_of", "load_config"]
