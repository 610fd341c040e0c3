"""Topics that are created automatically: number of partitions, replication factor and configuration."""

from typing import Final

from odradek.protocol.messages.create_topics import (
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

_INTERNAL_DEFAULTS: Final = {
    GROUP_METADATA_TOPIC: ("offsets.topic", {"cleanup.policy": "compact", "compression.type": "producer"}),
    TRANSACTION_STATE_TOPIC: (
        "transaction.state.log",
        {"cleanup.policy": "compact", "compression.type": "uncompressed", "unclean.leader.election.enable": "false"},
    ),
}


def plan_automatic_topic(
    name: str, configs: BrokerConfigs, broker_count: int | None = None
) -> CreateTopicsRequestCreatableTopic:
    """Return the request that creates a topic: an internal one, or one that a client uses without having created it.

    broker_count: limits the replication factor of an internal topic if it is not configured; None for no limit
    """
    topic = CreateTopicsRequestCreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
    if name not in _INTERNAL_DEFAULTS:
        return topic
    prefix, topic_configs = _INTERNAL_DEFAULTS[name]
    topic_configs = topic_configs | {"segment.bytes": str(find_setting(configs, f"{prefix}.segment.bytes", 100 << 20))}
    if name == TRANSACTION_STATE_TOPIC:
        topic_configs["min.insync.replicas"] = str(find_setting(configs, f"{prefix}.min.isr", 1))
    factor_name = f"{prefix}.replication.factor"
    factor = find_setting(configs, factor_name, 1)
    if broker_count is not None and factor_name not in configs.static.explicit:
        factor = min(factor, max(1, broker_count))
        if "min.insync.replicas" in topic_configs:
            topic_configs["min.insync.replicas"] = str(min(int(topic_configs["min.insync.replicas"]), factor))
    topic.num_partitions = find_setting(configs, f"{prefix}.num.partitions", 50)
    topic.replication_factor = factor
    topic.configs = [CreateTopicsRequestCreatableTopicConfig(name=n, value=v) for n, v in topic_configs.items()]
    return topic


def find_setting(configs: BrokerConfigs, name: str, fallback: int) -> int:
    """Return the current value of a broker property; `fallback` if this broker has no such property."""
    try:
        return int(configs.current.value(name))
    except KeyError:
        return fallback
