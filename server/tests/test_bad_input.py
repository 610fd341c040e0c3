"""Absurd values in requests of every API get the error that Apache Kafka returns for the same frame.

`ANSWERS` has the errors of Apache Kafka 4.3.0, `BETTER` those in which Odradek differs on purpose, and `BEFORE` the
requests that make cases independent of the others.
"""

import socket
import struct
import time

import pytest

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import alter_configs as ac
from odradek.protocol.messages import create_partitions as cp
from odradek.protocol.messages import create_topics as ct
from odradek.protocol.messages import delete_records as dr
from odradek.protocol.messages import describe_configs as dc
from odradek.protocol.messages import describe_producers as dp
from odradek.protocol.messages import describe_topic_partitions as dtp
from odradek.protocol.messages import incremental_alter_configs as iac
from odradek.protocol.messages import join_group as jg
from odradek.protocol.messages import leave_group as lg
from odradek.protocol.messages import list_offsets as lo
from odradek.protocol.messages import offset_commit as oc
from odradek.protocol.messages import offset_delete as od
from odradek.protocol.messages import offset_fetch as of
from odradek.protocol.messages import offset_for_leader_epoch as ole
from odradek.protocol.messages import produce as p
from odradek.protocol.messages import request_class, response_class
from odradek.protocol.messages import sync_group as sg
from odradek.protocol.messages import update_features as uf
from odradek.protocol.messages.delete_groups import DeleteGroupsRequest
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.describe_cluster import DescribeClusterRequest
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestDescribableLogDirTopic,
)
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.list_config_resources import ListConfigResourcesRequest
from odradek.protocol.messages.list_groups import ListGroupsRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.records import build_batch
from odradek.server.tests.wire import TIMEOUT_S, until
from odradek.testing import OdradekBroker

TOPIC = "there"
LONG_AGO, FAR = -(2**63), 2**63 - 1
LEAST, MOST = -(2**31), 2**31 - 1


def records(**options):
    return build_batch([(int(time.time() * 1000), None, b"v", ())], **options)


def produce(*, topic=TOPIC, index=0, acks=-1, timeout_ms=1000, data=None, **fields):
    partition = p.ProduceRequestPartitionProduceData(index=index, records=records() if data is None else data)
    named = p.ProduceRequestTopicProduceData(name=topic, partition_data=[partition])
    return p.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[named], **fields)


def list_offsets(timestamp=-1, *, topic=TOPIC, indexes=(0,), epoch=-1, **fields):
    partitions = [
        lo.ListOffsetsRequestListOffsetsPartition(
            partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
        )
        for index in indexes
    ]
    topics = [lo.ListOffsetsRequestListOffsetsTopic(name=topic, partitions=partitions)]
    return lo.ListOffsetsRequest(**{"replica_id": -1, "topics": topics, **fields})


def delete_records(offset, *, topic=TOPIC, index=0, timeout_ms=1000):
    asked = dr.DeleteRecordsRequestDeleteRecordsPartition(partition_index=index, offset=offset)
    topics = [dr.DeleteRecordsRequestDeleteRecordsTopic(name=topic, partitions=[asked])]
    return dr.DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)


def epoch_end(*, topic=TOPIC, index=0, epoch=0, current=-1, replica_id=-2):
    asked = ole.OffsetForLeaderEpochRequestOffsetForLeaderPartition(
        partition=index, leader_epoch=epoch, current_leader_epoch=current
    )
    topics = [ole.OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=topic, partitions=[asked])]
    return ole.OffsetForLeaderEpochRequest(replica_id=replica_id, topics=topics)


def create_topic(name, partitions=1, factor=1, timeout_ms=5000, **fields):
    topic = ct.CreateTopicsRequestCreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, **fields
    )
    return ct.CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


def create_partitions(count, name=TOPIC):
    topic = cp.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=None)
    return cp.CreatePartitionsRequest(topics=[topic], timeout_ms=5000)


def join(group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocols=("range",), **fields):
    return jg.JoinGroupRequest(
        **{
            "group_id": group_id,
            "session_timeout_ms": session_timeout_ms,
            "rebalance_timeout_ms": rebalance_timeout_ms,
            "protocol_type": "consumer",
            "protocols": [jg.JoinGroupRequestProtocol(name=name) for name in protocols],
            **fields,
        }
    )


def commit(group_id="bare", *, topic=TOPIC, index=0, offset=0, metadata="", generation=-1, **fields):
    asked = oc.OffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_metadata=metadata
    )
    topics = [oc.OffsetCommitRequestTopic(name=topic, partitions=[asked])]
    return oc.OffsetCommitRequest(
        group_id=group_id, generation_id_or_member_epoch=generation, topics=topics, **fields
    )


def fetch_offsets(group_id, index=0, topic=TOPIC, **fields):
    topics = [of.OffsetFetchRequestTopics(name=topic, partition_indexes=[index])]
    return of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id=group_id, topics=topics, **fields)])


def delete_offsets(group_id, index=0, topic=TOPIC):
    asked = od.OffsetDeleteRequestPartition(partition_index=index)
    topics = [od.OffsetDeleteRequestTopic(name=topic, partitions=[asked])]
    return od.OffsetDeleteRequest(group_id=group_id, topics=topics)


def leave(group_id, *members):
    return lg.LeaveGroupRequest(
        group_id=group_id, members=[lg.LeaveGroupRequestMemberIdentity(member_id=member) for member in members]
    )


def describe_configs(kind, name, keys=None):
    resource = dc.DescribeConfigsRequestDescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return dc.DescribeConfigsRequest(resources=[resource])


def alter(kind, name, **configs):
    values = [ac.AlterConfigsRequestAlterableConfig(name=n.replace("_", "."), value=v) for n, v in configs.items()]
    resource = ac.AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=values)
    return ac.AlterConfigsRequest(resources=[resource])


def incremental(kind, name, operation=0, **configs):
    values = [
        iac.IncrementalAlterConfigsRequestAlterableConfig(
            name=n.replace("_", "."), value=v, config_operation=operation
        )
        for n, v in configs.items()
    ]
    resource = iac.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=values
    )
    return iac.IncrementalAlterConfigsRequest(resources=[resource])


def describe_topics(*names, limit=10, cursor=None):
    if cursor is not None:
        cursor = dtp.DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1])
    topics = [dtp.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names]
    return dtp.DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)


def describe_producers(topic, index):
    asked = dp.DescribeProducersRequestTopicRequest(name=topic, partition_indexes=[index])
    return dp.DescribeProducersRequest(topics=[asked])


def update_feature(name, level, upgrade_type=1):
    update = uf.UpdateFeaturesRequestFeatureUpdateKey(
        feature=name, max_version_level=level, upgrade_type=upgrade_type
    )
    return uf.UpdateFeaturesRequest(feature_updates=[update])


def metadata(*names, create=False):
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


def log_dirs(topic, index):
    asked = DescribeLogDirsRequestDescribableLogDirTopic(topic=topic, partitions=[index])
    return DescribeLogDirsRequest(topics=[asked])


def delete_topic(name):
    return DeleteTopicsRequest(topics=[DeleteTopicsRequestDeleteTopicState(name=name)], timeout_ms=5000)


def cases(version, *rows):
    return [(version, *row) for row in rows]


CASES = [
    *cases(
        12,
        ("produce, negative timeout", produce(timeout_ms=-1)),
        ("produce, negative partition", produce(index=-1)),
        ("produce, no such partition", produce(index=MOST)),
        ("produce, empty topic", produce(topic="")),
        ("produce, impossible topic", produce(topic="a/b")),
        ("produce, acks 2", produce(acks=2)),
        ("produce, acks -2", produce(acks=-2)),
        ("produce, no records", produce(data=b"")),
        ("produce, transactional without an id", produce(data=records(
            transactional=True, producer_id=9, producer_epoch=0, base_sequence=0))),
        ("produce, internal topic", produce(topic="__consumer_offsets")),
    ),
    *cases(
        9,
        ("list offsets, negative partition", list_offsets(indexes=[-1])),
        ("list offsets, named twice", list_offsets(indexes=[0, 0])),
        ("list offsets, no such timestamp", list_offsets(-7)),
        ("list offsets, least timestamp", list_offsets(LONG_AGO)),
        ("list offsets, greatest timestamp", list_offsets(FAR)),
        ("list offsets, later epoch", list_offsets(epoch=MOST)),
        ("list offsets, negative epoch", list_offsets(epoch=-5)),
        ("list offsets, empty topic", list_offsets(topic="")),
        ("list offsets, debugging replica", list_offsets(replica_id=-2)),
        ("list offsets, another broker", list_offsets(replica_id=77)),
    ),
    *cases(
        2,
        ("delete records, offset -2", delete_records(-2)),
        ("delete records, offset beyond", delete_records(FAR)),
        ("delete records, negative partition", delete_records(0, index=-1)),
        ("delete records, negative timeout", delete_records(0, timeout_ms=LEAST)),
        ("delete records, internal topic", delete_records(0, topic="__consumer_offsets")),
    ),
    *cases(
        4,
        ("epoch end, negative partition", epoch_end(index=-1)),
        ("epoch end, negative epoch", epoch_end(epoch=-1)),
        ("epoch end, least epoch", epoch_end(epoch=LEAST)),
        ("epoch end, later current epoch", epoch_end(current=MOST)),
        ("epoch end, negative current epoch", epoch_end(current=-5)),
        ("epoch end, another broker", epoch_end(replica_id=77)),
    ),
    *cases(
        12,
        ("metadata, empty name", metadata("")),
        ("metadata, empty name, create", metadata("", create=True)),
        ("metadata, dots", metadata(".", create=True)),
        ("metadata, long name", metadata("x" * 250, create=True)),
        ("metadata, slash", metadata("a/b")),
    ),
    *cases(
        7,
        ("create topics, empty name", create_topic("")),
        ("create topics, no partitions", create_topic("a", 0)),
        ("create topics, partitions -2", create_topic("a", -2)),
        ("create topics, factor 0", create_topic("a", 1, 0)),
        ("create topics, factor -2", create_topic("a", 1, -2)),
        ("create topics, factor 5", create_topic("a", 1, 5)),
        ("create topics, there already", create_topic(TOPIC)),
        ("create topics, bad config", create_topic("a", configs=[
            ct.CreateTopicsRequestCreatableTopicConfig(name="no.such", value="1")])),
        ("create topics, null config", create_topic("a", configs=[
            ct.CreateTopicsRequestCreatableTopicConfig(name="retention.ms", value=None)])),
        ("create topics, assignment and count", create_topic("a", 2, 1, assignments=[
            ct.CreateTopicsRequestCreatableReplicaAssignment(partition_index=0, broker_ids=[1])])),
        ("create topics, empty assignment", create_topic("a", -1, -1, assignments=[
            ct.CreateTopicsRequestCreatableReplicaAssignment(partition_index=0, broker_ids=[])])),
        ("create topics, assignment to nobody", create_topic("a", -1, -1, assignments=[
            ct.CreateTopicsRequestCreatableReplicaAssignment(partition_index=0, broker_ids=[-1])])),
        ("create topics, assignment begins at 5", create_topic("a", -1, -1, assignments=[
            ct.CreateTopicsRequestCreatableReplicaAssignment(partition_index=5, broker_ids=[1])])),
    ),
    *cases(
        3,
        ("create partitions, fewer", create_partitions(0)),
        ("create partitions, negative", create_partitions(-1)),
        ("create partitions, as many", create_partitions(1)),
        ("create partitions, no such topic", create_partitions(5, "nowhere")),
    ),
    *cases(6, ("delete topics, empty name", delete_topic("")), ("delete topics, nowhere", delete_topic("nowhere"))),
    *cases(
        9,
        ("join, empty group", join("")),
        ("join, session timeout 0", join(session_timeout_ms=0)),
        ("join, session timeout negative", join(session_timeout_ms=-1)),
        ("join, session timeout huge", join(session_timeout_ms=MOST)),
        ("join, no protocols", join(protocols=())),
        ("join, no protocol type", join(protocol_type="")),
        ("join, unknown member", join(member_id="nobody")),
        ("join, empty instance id", join(group_instance_id="")),
        ("join, impossible instance id", join("other", group_instance_id="a/b")),
    ),
    *cases(
        5,
        ("sync, empty group", sg.SyncGroupRequest(group_id="", protocol_type="consumer", protocol_name="range")),
        ("sync, no protocol", sg.SyncGroupRequest(group_id="nowhere")),
        ("sync, no group", sg.SyncGroupRequest(group_id="nowhere", protocol_type="consumer", protocol_name="range")),
    ),
    *cases(
        4,
        ("heartbeat, empty group", HeartbeatRequest(group_id="")),
        ("heartbeat, no group", HeartbeatRequest(group_id="nowhere", generation_id=LEAST, member_id="m")),
    ),
    *cases(
        5,
        ("leave, empty group", leave("")),
        ("leave, no group", leave("nowhere", "m")),
        ("leave, nobody", leave("g")),
    ),
    *cases(
        9,
        ("commit, empty group", commit("")),
        ("commit, negative offset", commit(offset=-1)),
        ("commit, least offset", commit(offset=LONG_AGO)),
        ("commit, null metadata", commit(metadata=None)),
        ("commit, long metadata", commit(metadata="x" * 5000)),
        ("commit, negative partition", commit(index=-1)),
        ("commit, generation 0", commit(generation=0)),
        ("commit, generation -2", commit("new", generation=-2)),
        ("commit, empty topic", commit(topic="")),
    ),
    *cases(
        9,
        ("fetch offsets, empty group", fetch_offsets("")),
        ("fetch offsets, no group", fetch_offsets("nowhere")),
        ("fetch offsets, negative partition", fetch_offsets("bare", -1)),
        ("fetch offsets, member epoch", fetch_offsets("bare", member_id="m", member_epoch=MOST)),
    ),
    *cases(
        0,
        ("delete offsets, empty group", delete_offsets("")),
        ("delete offsets, no group", delete_offsets("nowhere")),
        ("delete offsets, negative partition", delete_offsets("bare", -1)),
    ),
    *cases(2, ("delete groups, empty", DeleteGroupsRequest(groups_names=["", "nowhere", "nowhere"]))),
    *cases(6, ("describe groups, empty", DescribeGroupsRequest(groups=["", "nowhere", "nowhere"]))),
    *cases(5, ("list groups, no such state", ListGroupsRequest(states_filter=["", "x"], types_filter=["y"]))),
    *cases(
        6,
        ("find coordinator, no keys", FindCoordinatorRequest(coordinator_keys=[])),
        ("find coordinator, empty key", FindCoordinatorRequest(coordinator_keys=[""])),
        ("find coordinator, type 9", FindCoordinatorRequest(coordinator_keys=["a"], key_type=9)),
        ("find coordinator, type -1", FindCoordinatorRequest(coordinator_keys=["a"], key_type=-1)),
        ("find coordinator, share, no such key", FindCoordinatorRequest(coordinator_keys=["a"], key_type=2)),
    ),
    *cases(
        5,
        ("init producer, epoch only", InitProducerIdRequest(transactional_id=None, producer_epoch=3)),
        ("init producer, id only", InitProducerIdRequest(transactional_id=None, producer_id=3)),
        ("init producer, empty transactional id", InitProducerIdRequest(transactional_id="")),
    ),
    *cases(
        4,
        ("describe configs, type 0", describe_configs(0, "")),
        ("describe configs, type -1", describe_configs(-1, "x")),
        ("describe configs, empty topic", describe_configs(2, "")),
        ("describe configs, no topic", describe_configs(2, "nowhere")),
        ("describe configs, impossible topic", describe_configs(2, "a/b")),
        ("describe configs, broker x", describe_configs(4, "x")),
        ("describe configs, broker 99", describe_configs(4, "99")),
        ("describe configs, no such key", describe_configs(2, TOPIC, ["no.such"])),
        ("describe configs, no keys", describe_configs(2, TOPIC, [])),
    ),
    *cases(
        2,
        ("alter configs, type 0", alter(0, "")),
        ("alter configs, empty topic", alter(2, "", retention_ms="1")),
        ("alter configs, no topic", alter(2, "nowhere", retention_ms="1")),
        ("alter configs, null value", alter(2, TOPIC, retention_ms=None)),
        ("alter configs, bad value", alter(2, TOPIC, retention_ms="x")),
        ("alter configs, broker x", alter(4, "x", log_retention_ms="1")),
    ),
    *cases(
        1,
        ("incremental, operation 9", incremental(2, TOPIC, 9, retention_ms="1")),
        ("incremental, operation -1", incremental(2, TOPIC, -1, retention_ms="1")),
        ("incremental, append to a number", incremental(2, TOPIC, 2, retention_ms="1")),
        ("incremental, null value", incremental(2, TOPIC, 0, retention_ms=None)),
        ("incremental, unknown name", incremental(2, TOPIC, 0, no_such="1")),
        ("incremental, delete unknown name", incremental(2, TOPIC, 1, no_such=None)),
        ("incremental, no topic", incremental(2, "nowhere", 0, retention_ms="1")),
        ("incremental, type 77", incremental(77, "x", 0, retention_ms="1")),
        ("incremental, broker 99", incremental(4, "99", 0, log_retention_ms="1")),
    ),
    *cases(1, ("list config resources, type 99", ListConfigResourcesRequest(resource_types=[99]))),
    *cases(
        0,
        ("describe topics, limit 0", describe_topics(TOPIC, limit=0)),
        ("describe topics, limit negative", describe_topics(TOPIC, limit=-1)),
        ("describe topics, empty name", describe_topics("")),
        ("describe topics, impossible name", describe_topics("a/b")),
        ("describe topics, cursor elsewhere", describe_topics(TOPIC, cursor=("zzz", 0))),
        ("describe topics, cursor before", describe_topics(TOPIC, cursor=("a", 0))),
        ("describe topics, negative cursor", describe_topics(TOPIC, cursor=(TOPIC, -1))),
        ("describe topics, cursor beyond", describe_topics(TOPIC, cursor=(TOPIC, MOST))),
        ("describe producers, empty topic", describe_producers("", 0)),
        ("describe producers, no topic", describe_producers("nowhere", 0)),
        ("describe producers, negative partition", describe_producers(TOPIC, -1)),
    ),
    *cases(
        2,
        ("describe cluster, endpoint type 0", DescribeClusterRequest(endpoint_type=0)),
        ("describe cluster, controllers", DescribeClusterRequest(endpoint_type=2)),
        ("describe cluster, endpoint type -1", DescribeClusterRequest(endpoint_type=-1)),
    ),
    *cases(5, ("log dirs, negative partition", log_dirs(TOPIC, -1)), ("log dirs, empty topic", log_dirs("", 0))),
    *cases(
        1,
        ("update features, none", uf.UpdateFeaturesRequest()),
        ("update features, empty name", update_feature("", 1)),
        ("update features, unknown", update_feature("no.such", 1)),
    ),
]

ANSWERS = {
    "produce, negative timeout": "NONE",
    "produce, negative partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "produce, no such partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "produce, empty topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "produce, impossible topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "produce, acks 2": "INVALID_REQUIRED_ACKS",
    "produce, acks -2": "INVALID_REQUIRED_ACKS",
    "produce, no records": "INVALID_RECORD",
    "produce, transactional without an id": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "produce, internal topic": "INVALID_TOPIC_EXCEPTION",
    "list offsets, negative partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "list offsets, named twice": "INVALID_REQUEST",
    "list offsets, no such timestamp": "UNSUPPORTED_VERSION",
    "list offsets, least timestamp": "UNSUPPORTED_VERSION",
    "list offsets, greatest timestamp": "NONE",
    "list offsets, later epoch": "UNKNOWN_LEADER_EPOCH",
    "list offsets, negative epoch": "FENCED_LEADER_EPOCH",
    "list offsets, empty topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "list offsets, debugging replica": "NONE",
    "list offsets, another broker": "NONE",
    "delete records, offset -2": "OFFSET_OUT_OF_RANGE",
    "delete records, offset beyond": "OFFSET_OUT_OF_RANGE",
    "delete records, negative partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "delete records, negative timeout": "NONE",
    "delete records, internal topic": "INVALID_TOPIC_EXCEPTION",
    "epoch end, negative partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "epoch end, negative epoch": "NONE",
    "epoch end, least epoch": "NONE",
    "epoch end, later current epoch": "UNKNOWN_LEADER_EPOCH",
    "epoch end, negative current epoch": "FENCED_LEADER_EPOCH",
    "epoch end, another broker": "NONE",
    "metadata, empty name": "INVALID_TOPIC_EXCEPTION NONE",
    "metadata, empty name, create": "INVALID_TOPIC_EXCEPTION NONE",
    "metadata, dots": "INVALID_TOPIC_EXCEPTION NONE",
    "metadata, long name": "INVALID_TOPIC_EXCEPTION NONE",
    "metadata, slash": "INVALID_TOPIC_EXCEPTION NONE",
    "create topics, empty name": "INVALID_TOPIC_EXCEPTION",
    "create topics, no partitions": "INVALID_PARTITIONS",
    "create topics, partitions -2": "INVALID_PARTITIONS",
    "create topics, factor 0": "INVALID_REPLICATION_FACTOR",
    "create topics, factor -2": "INVALID_REPLICATION_FACTOR",
    "create topics, factor 5": "INVALID_REPLICATION_FACTOR",
    "create topics, there already": "TOPIC_ALREADY_EXISTS",
    "create topics, bad config": "INVALID_CONFIG",
    "create topics, null config": "INVALID_CONFIG",
    "create topics, assignment and count": "INVALID_REQUEST",
    "create topics, empty assignment": "INVALID_REPLICA_ASSIGNMENT",
    "create topics, assignment to nobody": "INVALID_REPLICA_ASSIGNMENT",
    "create topics, assignment begins at 5": "INVALID_REPLICA_ASSIGNMENT",
    "create partitions, fewer": "INVALID_PARTITIONS",
    "create partitions, negative": "INVALID_PARTITIONS",
    "create partitions, as many": "INVALID_PARTITIONS",
    "create partitions, no such topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "delete topics, empty name": "UNKNOWN_TOPIC_OR_PARTITION",
    "delete topics, nowhere": "UNKNOWN_TOPIC_OR_PARTITION",
    "join, empty group": "INVALID_GROUP_ID",
    "join, session timeout 0": "INVALID_SESSION_TIMEOUT",
    "join, session timeout negative": "INVALID_SESSION_TIMEOUT",
    "join, session timeout huge": "INVALID_SESSION_TIMEOUT",
    "join, no protocols": "INCONSISTENT_GROUP_PROTOCOL",
    "join, no protocol type": "INCONSISTENT_GROUP_PROTOCOL",
    "join, unknown member": "UNKNOWN_MEMBER_ID",
    "join, empty instance id": "NONE",
    "join, impossible instance id": "NONE",
    "sync, empty group": "INVALID_GROUP_ID",
    "sync, no protocol": "INCONSISTENT_GROUP_PROTOCOL",
    "sync, no group": "UNKNOWN_MEMBER_ID",
    "heartbeat, empty group": "INVALID_GROUP_ID",
    "heartbeat, no group": "UNKNOWN_MEMBER_ID",
    "leave, empty group": "INVALID_GROUP_ID",
    "leave, no group": "NONE UNKNOWN_MEMBER_ID",
    "leave, nobody": "NONE",
    "commit, empty group": "NONE",
    "commit, negative offset": "NONE",
    "commit, least offset": "NONE",
    "commit, null metadata": "NONE",
    "commit, long metadata": "OFFSET_METADATA_TOO_LARGE",
    "commit, negative partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "commit, generation 0": "UNKNOWN_MEMBER_ID",
    "commit, generation -2": "NONE",
    "commit, empty topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "fetch offsets, empty group": "NONE NONE NONE",
    "fetch offsets, no group": "NONE NONE NONE",
    "fetch offsets, negative partition": "NONE NONE NONE",
    "fetch offsets, member epoch": "NONE NONE NONE",
    "delete offsets, empty group": "INVALID_GROUP_ID",
    "delete offsets, no group": "GROUP_ID_NOT_FOUND",
    "delete offsets, negative partition": "NONE UNKNOWN_TOPIC_OR_PARTITION",
    "delete groups, empty": "NONE GROUP_ID_NOT_FOUND",
    "describe groups, empty": "GROUP_ID_NOT_FOUND GROUP_ID_NOT_FOUND GROUP_ID_NOT_FOUND",
    "list groups, no such state": "NONE",
    "find coordinator, no keys": "NONE",
    "find coordinator, empty key": "NONE NONE",
    "find coordinator, type 9": "NONE INVALID_REQUEST",
    "find coordinator, type -1": "NONE INVALID_REQUEST",
    "find coordinator, share, no such key": "NONE INVALID_REQUEST",
    "init producer, epoch only": "INVALID_REQUEST",
    "init producer, id only": "INVALID_REQUEST",
    "init producer, empty transactional id": "INVALID_REQUEST",
    "describe configs, type 0": "INVALID_REQUEST",
    "describe configs, type -1": "INVALID_REQUEST",
    "describe configs, empty topic": "INVALID_TOPIC_EXCEPTION",
    "describe configs, no topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "describe configs, impossible topic": "INVALID_TOPIC_EXCEPTION",
    "describe configs, broker x": "INVALID_REQUEST",
    "describe configs, broker 99": "INVALID_REQUEST",
    "describe configs, no such key": "NONE",
    "describe configs, no keys": "NONE",
    "alter configs, type 0": "INVALID_REQUEST",
    "alter configs, empty topic": "INVALID_REQUEST",
    "alter configs, no topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "alter configs, null value": "INVALID_REQUEST",
    "alter configs, bad value": "INVALID_CONFIG",
    "alter configs, broker x": "INVALID_REQUEST",
    "incremental, operation 9": "UNKNOWN_SERVER_ERROR",
    "incremental, operation -1": "UNKNOWN_SERVER_ERROR",
    "incremental, append to a number": "INVALID_CONFIG",
    "incremental, null value": "INVALID_REQUEST",
    "incremental, unknown name": "INVALID_CONFIG",
    "incremental, delete unknown name": "NONE",
    "incremental, no topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "incremental, type 77": "INVALID_REQUEST",
    "incremental, broker 99": "INVALID_REQUEST",
    "list config resources, type 99": "UNSUPPORTED_VERSION",
    "describe topics, limit 0": "NONE NONE",
    "describe topics, limit negative": "NONE NONE",
    "describe topics, empty name": "UNKNOWN_SERVER_ERROR",
    "describe topics, impossible name": "INVALID_TOPIC_EXCEPTION",
    "describe topics, cursor elsewhere": "INVALID_REQUEST",
    "describe topics, cursor before": "INVALID_REQUEST",
    "describe topics, negative cursor": "INVALID_REQUEST",
    "describe topics, cursor beyond": "NONE",
    "describe producers, empty topic": "INVALID_TOPIC_EXCEPTION",
    "describe producers, no topic": "UNKNOWN_TOPIC_OR_PARTITION",
    "describe producers, negative partition": "UNKNOWN_TOPIC_OR_PARTITION",
    "describe cluster, endpoint type 0": "UNSUPPORTED_ENDPOINT_TYPE",
    "describe cluster, controllers": "MISMATCHED_ENDPOINT_TYPE",
    "describe cluster, endpoint type -1": "UNSUPPORTED_ENDPOINT_TYPE",
    "log dirs, negative partition": "NONE NONE",
    "log dirs, empty topic": "NONE NONE",
    "update features, none": "NONE",
    "update features, empty name": "INVALID_UPDATE_VERSION",
    "update features, unknown": "INVALID_UPDATE_VERSION",
}

BETTER = {
    # Apache Kafka returns UNKNOWN_SERVER_ERROR.
    "incremental, operation 9": "INVALID_REQUEST",
    "incremental, operation -1": "INVALID_REQUEST",
    "describe topics, empty name": "INVALID_TOPIC_EXCEPTION",
}

BEFORE = {
    "delete groups, empty": (commit(""), 9),
    "describe groups, empty": (DeleteGroupsRequest(groups_names=[""]), 2),
}


def ask(port, request, version):
    """Send a request. Return the response's error codes in their order, or None if the connection was closed."""
    key = request.api_key
    flexible = request_class(key).is_flexible(version)
    head = struct.pack(">hhih", key, version, 7, 4) + b"test" + (b"\0" if flexible else b"")
    content = head + codec.encode(request, version)
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(content)) + content)
        stream = connection.makefile("rb")
        first = stream.read(8)
        if not first:
            return None
        body = stream.read(struct.unpack(">i", first[:4])[0] - 4)
    if response_is_flexible(key, flexible):
        body = body[1:]
    return list(error_codes(codec.decode(response_class(key), version, body)))


def error_codes(value):
    if isinstance(value, list):
        for one in value:
            yield from error_codes(one)
    elif hasattr(type(value), "__slots__") and not isinstance(value, (str, bytes, int, memoryview)):
        for name in type(value).__slots__:
            if name == "error_code":
                yield getattr(value, name)
            else:
                yield from error_codes(getattr(value, name, None))


def prepare(port):
    ask(port, create_topic(TOPIC), 7)
    ask(port, FindCoordinatorRequest(coordinator_keys=["g"]), 6)
    until(lambda: ask(port, commit(), 9) == [0])
    ask(port, produce(), 12)


@pytest.fixture(scope="module")
def broker():
    with OdradekBroker() as broker:
        prepare(broker.port)
        yield broker


@pytest.mark.parametrize(("version", "name", "request_"), CASES, ids=[name for _, name, _ in CASES])
def test_the_error_is_apache_kafkas(broker, version, name, request_):
    if name in BEFORE:
        ask(broker.port, *BEFORE[name])
    codes = ask(broker.port, request_, version)
    expected = BETTER.get(name, ANSWERS[name])
    assert (None if codes is None else " ".join(ErrorCode(code).name for code in codes)) == expected
    assert "unexpected error" not in broker.log_text()


def test_a_transactional_batch_of_an_unknown_transaction_leaves_nothing_behind(broker):
    """A transaction that has no coordinator could not be ended, and readers would wait for its end."""
    batch = records(transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    before = ask(broker.port, produce(), 12)
    assert ask(broker.port, produce(data=batch, transactional_id="t"), 12) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert ask(broker.port, produce(), 12) == before == [0]
