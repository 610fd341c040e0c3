"""The table of APIs: keys, versions and handlers.

ApiVersions, dispatch, docs/compatibility.md and the test that every row is exercised derive from it. An API version
that is incomplete is not in the table.
"""

from typing import Final, NamedTuple

from odradek.protocol.codec import MAX_ELEMENTS
from odradek.server.security.authorization.needs import (
    ALTER_CLUSTER,
    ALTER_CLUSTER_CONFIGS,
    ALTER_TOPIC,
    ALTER_TOPIC_CONFIGS,
    CLUSTER_ACTION,
    CREATE_CLUSTER,
    CREATE_TOKENS_OF_USER,
    CREATE_TOPIC,
    DELETE_CLUSTER,
    DELETE_GROUP,
    DELETE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_CLUSTER_CONFIGS,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_GROUP,
    DESCRIBE_GROUP_CONFIGS,
    DESCRIBE_TOKENS_OF_USER,
    DESCRIBE_TOPIC,
    DESCRIBE_TOPIC_CONFIGS,
    DESCRIBE_TRANSACTIONAL_ID,
    IDEMPOTENT_WRITE,
    READ_GROUP,
    READ_TOPIC,
    WRITE_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    Need,
)

NO_NEEDS: Final[tuple[Need, ...]] = ()
"""Of the APIs that every client may use."""


class Api(NamedTuple):
    """A row of the table: the versions served and the handler, as `module:function` under `server/handlers`.

    needs: the operations that a client needs, in the order of evaluation (`server.authorization`); None until it is
        declared, and then no client may use the API of a broker with an authorizer
    max_elements: limit of the array elements in a request; a large one only if the handler works in slices
    in_cluster_only: served by brokers of a cluster, for each other
    outside_cluster_only: served by a broker with an embedded metadata store
    """

    key: int
    name: str
    first_version: int
    last_version: int
    handler: str
    max_elements: int = 20_000
    in_cluster_only: bool = False
    outside_cluster_only: bool = False
    needs: tuple[Need, ...] | None = None


PRODUCE_KEY: Final = 0
TELEMETRY_KEYS: Final = (71, 72)
"""APIs that are advertised only while there is a subscription of client metrics."""

APIS: Final = {
    api.key: api
    for api in (
        Api(0, "Produce", 3, 13, "records.produce:produce", needs=(WRITE_TRANSACTIONAL_ID, WRITE_TOPIC)),
        Api(1, "Fetch", 4, 18, "records.fetch:fetch", MAX_ELEMENTS, needs=(CLUSTER_ACTION, READ_TOPIC)),
        Api(2, "ListOffsets", 1, 11, "records.list_offsets:list_offsets", MAX_ELEMENTS, needs=(DESCRIBE_TOPIC,)),
        Api(
            3, "Metadata", 0, 13, "topics.metadata:metadata", MAX_ELEMENTS,
            needs=(DESCRIBE_TOPIC, CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_CLUSTER),
        ),
        Api(
            4, "LeaderAndIsr", 5, 7, "cluster.broker_control:leader_and_isr", MAX_ELEMENTS, in_cluster_only=True,
            needs=(CLUSTER_ACTION,),
        ),
        Api(
            5, "StopReplica", 3, 4, "cluster.broker_control:stop_replica", MAX_ELEMENTS, in_cluster_only=True,
            needs=(CLUSTER_ACTION,),
        ),
        Api(
            6, "UpdateMetadata", 7, 8, "cluster.broker_control:update_metadata", MAX_ELEMENTS, in_cluster_only=True,
            needs=(CLUSTER_ACTION,),
        ),
        Api(
            7, "ControlledShutdown", 3, 3, "cluster.controller_requests:controlled_shutdown", in_cluster_only=True,
            needs=(CLUSTER_ACTION,),
        ),
        Api(8, "OffsetCommit", 2, 10, "coordinators.group_offsets:offset_commit", needs=(READ_GROUP, READ_TOPIC)),
        Api(
            9, "OffsetFetch", 1, 10, "coordinators.group_offsets:offset_fetch", MAX_ELEMENTS,
            needs=(DESCRIBE_GROUP, DESCRIBE_TOPIC),
        ),
        Api(
            10, "FindCoordinator", 0, 6, "coordinators.find_coordinator:find_coordinator", MAX_ELEMENTS,
            needs=(DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID, CLUSTER_ACTION),
        ),
        Api(11, "JoinGroup", 0, 9, "coordinators.groups:join_group", needs=(READ_GROUP,)),
        Api(12, "Heartbeat", 0, 4, "coordinators.groups:heartbeat", needs=(READ_GROUP,)),
        Api(13, "LeaveGroup", 0, 5, "coordinators.groups:leave_group", needs=(READ_GROUP,)),
        Api(14, "SyncGroup", 0, 5, "coordinators.groups:sync_group", needs=(READ_GROUP,)),
        Api(15, "DescribeGroups", 0, 6, "coordinators.groups:describe_groups", needs=(DESCRIBE_GROUP,)),
        Api(16, "ListGroups", 0, 5, "coordinators.groups:list_groups", needs=(DESCRIBE_CLUSTER, DESCRIBE_GROUP)),
        Api(17, "SaslHandshake", 0, 1, "security.sasl:sasl_handshake", needs=NO_NEEDS),
        Api(18, "ApiVersions", 0, 4, "api_versions:api_versions", needs=NO_NEEDS),
        Api(
            19, "CreateTopics", 2, 7, "topics.topic_changes:create_topics", 50_000,
            needs=(CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS),
        ),
        Api(
            20, "DeleteTopics", 1, 6, "topics.topic_changes:delete_topics",
            needs=(DELETE_CLUSTER, DESCRIBE_TOPIC, DELETE_TOPIC),
        ),
        Api(21, "DeleteRecords", 0, 2, "records.delete_records:delete_records", MAX_ELEMENTS, needs=(DELETE_TOPIC,)),
        Api(
            22, "InitProducerId", 0, 5, "coordinators.producers:init_producer_id",
            needs=(WRITE_TRANSACTIONAL_ID, IDEMPOTENT_WRITE, WRITE_TOPIC),
        ),
        Api(
            23, "OffsetForLeaderEpoch", 2, 4, "records.list_offsets:offset_for_leader_epoch", MAX_ELEMENTS,
            needs=(CLUSTER_ACTION, DESCRIBE_TOPIC),
        ),
        Api(
            24, "AddPartitionsToTxn", 0, 5, "coordinators.transactions:add_partitions_to_txn",
            needs=(CLUSTER_ACTION, WRITE_TRANSACTIONAL_ID, WRITE_TOPIC),
        ),
        Api(
            25, "AddOffsetsToTxn", 0, 4, "coordinators.transactions:add_offsets_to_txn",
            needs=(WRITE_TRANSACTIONAL_ID, READ_GROUP),
        ),
        Api(26, "EndTxn", 0, 5, "coordinators.transactions:end_txn", needs=(WRITE_TRANSACTIONAL_ID,)),
        Api(
            27, "WriteTxnMarkers", 1, 2, "coordinators.transaction_markers:write_txn_markers",
            needs=(ALTER_CLUSTER, CLUSTER_ACTION),
        ),
        Api(
            28, "TxnOffsetCommit", 0, 5, "coordinators.transaction_offsets:txn_offset_commit",
            needs=(WRITE_TRANSACTIONAL_ID, READ_GROUP, READ_TOPIC),
        ),
        Api(29, "DescribeAcls", 1, 3, "security.acls:describe_acls", needs=(DESCRIBE_CLUSTER,)),
        Api(30, "CreateAcls", 1, 3, "security.acls:create_acls", needs=(ALTER_CLUSTER,)),
        Api(31, "DeleteAcls", 1, 3, "security.acls:delete_acls", needs=(ALTER_CLUSTER,)),
        Api(
            32, "DescribeConfigs", 1, 4, "topics.configs:describe_configs", 100_000,
            needs=(DESCRIBE_CLUSTER_CONFIGS, DESCRIBE_TOPIC_CONFIGS, DESCRIBE_GROUP_CONFIGS),
        ),
        Api(
            33, "AlterConfigs", 0, 2, "topics.configs:alter_configs",
            needs=(ALTER_CLUSTER_CONFIGS, ALTER_TOPIC_CONFIGS),
        ),
        Api(34, "AlterReplicaLogDirs", 1, 2, "topics.log_dirs:alter_replica_log_dirs", needs=(ALTER_CLUSTER,)),
        Api(35, "DescribeLogDirs", 1, 5, "topics.log_dirs:describe_log_dirs", MAX_ELEMENTS, needs=(DESCRIBE_CLUSTER,)),
        Api(36, "SaslAuthenticate", 0, 2, "security.sasl:sasl_authenticate", needs=NO_NEEDS),
        Api(37, "CreatePartitions", 0, 3, "topics.topic_changes:create_partitions", 50_000, needs=(ALTER_TOPIC,)),
        Api(
            38, "CreateDelegationToken", 1, 3, "security.delegation_tokens:create_delegation_token",
            needs=(CREATE_TOKENS_OF_USER,),
        ),
        Api(39, "RenewDelegationToken", 1, 2, "security.delegation_tokens:renew_delegation_token", needs=NO_NEEDS),
        Api(40, "ExpireDelegationToken", 1, 2, "security.delegation_tokens:expire_delegation_token", needs=NO_NEEDS),
        Api(
            41, "DescribeDelegationToken", 1, 3, "security.delegation_tokens:describe_delegation_token",
            needs=(DESCRIBE_DELEGATION_TOKEN, DESCRIBE_TOKENS_OF_USER),
        ),
        Api(42, "DeleteGroups", 0, 2, "coordinators.groups:delete_groups", needs=(DELETE_GROUP,)),
        Api(43, "ElectLeaders", 0, 2, "cluster.elections:elect_leaders", needs=(ALTER_CLUSTER,)),
        Api(
            44, "IncrementalAlterConfigs", 0, 1, "topics.configs:incremental_alter_configs",
            needs=(ALTER_CLUSTER_CONFIGS, ALTER_TOPIC_CONFIGS),
        ),
        Api(
            45, "AlterPartitionReassignments", 0, 1, "cluster.reassignments:alter_partition_reassignments", 50_000,
            needs=(ALTER_CLUSTER,),
        ),
        Api(
            46, "ListPartitionReassignments", 0, 0, "cluster.reassignments:list_partition_reassignments",
            needs=(DESCRIBE_CLUSTER,),
        ),
        Api(47, "OffsetDelete", 0, 0, "coordinators.group_offsets:offset_delete", needs=(DELETE_GROUP, READ_TOPIC)),
        Api(
            48, "DescribeClientQuotas", 0, 1, "client_quotas:describe_client_quotas",
            needs=(DESCRIBE_CLUSTER_CONFIGS,),
        ),
        Api(49, "AlterClientQuotas", 0, 1, "client_quotas:alter_client_quotas", needs=(ALTER_CLUSTER_CONFIGS,)),
        Api(
            50, "DescribeUserScramCredentials", 0, 0, "security.scram_users:describe_user_scram_credentials",
            needs=(DESCRIBE_CLUSTER,),
        ),
        Api(
            51, "AlterUserScramCredentials", 0, 0, "security.scram_users:alter_user_scram_credentials",
            needs=(ALTER_CLUSTER,),
        ),
        Api(
            55, "DescribeQuorum", 0, 2, "cluster.quorum:describe_quorum", outside_cluster_only=True,
            needs=(DESCRIBE_CLUSTER,),
        ),
        Api(
            56, "AlterPartition", 2, 3, "cluster.controller_requests:alter_partition", MAX_ELEMENTS,
            in_cluster_only=True, needs=(CLUSTER_ACTION,),
        ),
        Api(57, "UpdateFeatures", 0, 2, "cluster.features:update_features", needs=(ALTER_CLUSTER,)),
        Api(60, "DescribeCluster", 0, 2, "topics.metadata:describe_cluster", needs=(DESCRIBE_CLUSTER,)),
        Api(61, "DescribeProducers", 0, 0, "coordinators.producers:describe_producers", needs=(READ_TOPIC,)),
        Api(
            65, "DescribeTransactions", 0, 0, "coordinators.transactions:describe_transactions",
            needs=(DESCRIBE_TRANSACTIONAL_ID, DESCRIBE_TOPIC),
        ),
        Api(
            66, "ListTransactions", 0, 2, "coordinators.transactions:list_transactions",
            needs=(DESCRIBE_TRANSACTIONAL_ID,),
        ),
        Api(
            67, "AllocateProducerIds", 0, 0, "cluster.controller_requests:allocate_producer_ids", in_cluster_only=True,
            needs=(CLUSTER_ACTION,),
        ),
        Api(71, "GetTelemetrySubscriptions", 0, 0, "telemetry:get_telemetry_subscriptions", needs=NO_NEEDS),
        Api(72, "PushTelemetry", 0, 0, "telemetry:push_telemetry", needs=NO_NEEDS),
        Api(74, "ListConfigResources", 0, 1, "topics.configs:list_config_resources", needs=(DESCRIBE_CLUSTER_CONFIGS,)),
        Api(
            75, "DescribeTopicPartitions", 0, 0, "topics.topic_partitions:describe_topic_partitions", MAX_ELEMENTS,
            needs=(DESCRIBE_TOPIC,),
        ),
    )
}
"""Source of keys and versions: the ApiVersions response of Apache Kafka 4.3.0, without APIs that are not served yet.

InitProducerId 6 (KIP-939) is unstable in Kafka, which serves it only with `unstable.api.versions.enable`."""


def served_apis(*, in_cluster: bool) -> dict[int, Api]:
    """Return the APIs of a broker of a cluster, or of a broker with an embedded metadata store."""
    return {
        key: api
        for key, api in APIS.items()
        if not (api.outside_cluster_only if in_cluster else api.in_cluster_only)
    }


def advertised_first_version(api: Api) -> int:
    """Return the first version in the ApiVersions response.

    Produce is advertised from 0 although it is served from 3: otherwise librdkafka disables compression codecs
    (KAFKA-18659).
    """
    return 0 if api.key == PRODUCE_KEY else api.first_version
