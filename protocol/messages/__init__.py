"""Messages of Kafka 4.3, and those of Kafka 3.9's ZooKeeper mode: one module for each API, imported when first used."""

import re
from importlib import import_module
from typing import Final

from odradek.protocol.schema import Message

API_NAMES: Final = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    32: "DescribeConfigs",
    33: "AlterConfigs",
    34: "AlterReplicaLogDirs",
    35: "DescribeLogDirs",
    36: "SaslAuthenticate",
    37: "CreatePartitions",
    38: "CreateDelegationToken",
    39: "RenewDelegationToken",
    40: "ExpireDelegationToken",
    41: "DescribeDelegationToken",
    42: "DeleteGroups",
    43: "ElectLeaders",
    44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments",
    47: "OffsetDelete",
    50: "DescribeUserScramCredentials",
    51: "AlterUserScramCredentials",
    48: "DescribeClientQuotas",
    49: "AlterClientQuotas",
    55: "DescribeQuorum",
    56: "AlterPartition",
    57: "UpdateFeatures",
    60: "DescribeCluster",
    61: "DescribeProducers",
    65: "DescribeTransactions",
    66: "ListTransactions",
    67: "AllocateProducerIds",
    69: "ConsumerGroupDescribe",
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
    74: "ListConfigResources",
    75: "DescribeTopicPartitions",
    77: "ShareGroupDescribe",
    89: "StreamsGroupDescribe",
    90: "DescribeShareGroupOffsets",
}
"""Kafka's API names by key."""

ZOOKEEPER_MODE_KEYS: Final = frozenset({4, 5, 6, 7})
"""Keys of the APIs of ZooKeeper mode, which Kafka 4 does not have."""


def request_class(key: int) -> type[Message]:
    """Return the request class of an API. Raises `KeyError` for an API without one."""
    return _message_class(API_NAMES[key], "Request")


def response_class(key: int) -> type[Message]:
    """Return the response class of an API. Raises `KeyError` for an API without one."""
    return _message_class(API_NAMES[key], "Response")


def _message_class(api_name: str, kind: str) -> type[Message]:
    module_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()
    module = import_module(f"odradek.protocol.messages.{module_name}")
    found: type[Message] = getattr(module, api_name + kind)
    return found
