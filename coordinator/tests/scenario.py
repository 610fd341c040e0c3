"""Reads and plays scenario files: commands, a line `----`, and their expected outcome.

    join A v=0 protocols=range,roundrobin topics=t      a member's request with the token A
    wait 3000                                           time passes, deadline by deadline
    set-wall-clock -3600000                             the wall clock is set back by an hour
    ----
    +3000 g: PreparingRebalance -> CompletingRebalance (all joined)
    +3000 A <- NONE generation=1 ...

Blocks are separated by empty lines; `#` starts a comment. Times are in ms since the scenario's start, on the
monotonic clock. With ODRADEK_REWRITE_SCENARIOS=1 the tests rewrite the outcomes; review the difference.
"""

import logging
from pathlib import Path
from typing import Any, Generic, TypeVar

from odradek.coordinator.groups.records import (
    OffsetCommitKey,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard_state import DeletedTopic
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorRecord
from odradek.coordinator.tests.driver import START_MS, GroupDriver, ShardDriver, run_at_once, subscription
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from odradek.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupRequestMemberIdentity
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

SEPARATOR = "----"

D = TypeVar("D", bound=ShardDriver[Any])


class Block:
    """Commands and their expected outcome."""

    def __init__(self, commands: list[str], expected: list[str]) -> None:
        self.commands = commands
        self.expected = expected


def parse(text: str) -> list[Block]:
    blocks = []
    for chunk in text.strip().split("\n\n"):
        lines = chunk.split("\n")
        cut = lines.index(SEPARATOR) if SEPARATOR in lines else len(lines)
        blocks.append(Block(lines[:cut], lines[cut + 1 :]))
    return blocks


def render(blocks: list[Block]) -> str:
    chunks = []
    for block in blocks:
        lines = list(block.commands)
        if block.expected or any(line and not line.startswith("#") for line in block.commands):
            lines += [SEPARATOR, *block.expected]
        chunks.append("\n".join(lines))
    return "\n\n".join(chunks) + "\n"


class Player(logging.Handler, Generic[D]):
    """Plays commands and records their outcome: responses, records, changes of state."""

    logger_name = ""

    def __init__(self, driver: D) -> None:
        super().__init__()
        self.out: list[str] = []
        self.use(driver)

    def use(self, driver: D) -> None:
        """Play on this driver from here on."""
        self.driver = driver
        driver.on_reply = lambda token, response: self.add_line(f"{token} <- {self.show(response)}")
        driver.on_record = lambda record: self.add_line(f"write {self.show_record(record)}")

    def show(self, response: Any) -> str:
        raise NotImplementedError

    def show_record(self, record: CoordinatorRecord) -> str:
        raise NotImplementedError

    def add_line(self, text: str) -> None:
        self.out.append(f"+{self.driver.monotonic_ms} {text}")

    def emit(self, record: logging.LogRecord) -> None:
        if "state changed" in record.msg:
            name, old, new, *_, why = record.args  # type: ignore[misc]
            self.add_line(f"{name}: {old} -> {new} ({why})")

    def play(self, file: Path) -> list[Block]:
        """Play a file. Return its blocks with their actual outcome."""
        state_log = logging.getLogger(self.logger_name)
        level = state_log.level
        state_log.addHandler(self)
        state_log.setLevel(logging.DEBUG)
        try:
            played = []
            for block in parse(file.read_text()):
                self.out = []
                for line in block.commands:
                    if line and not line.startswith("#"):
                        self.run(line)
                played.append(Block(block.commands, self.out))
            return played
        finally:
            state_log.removeHandler(self)
            state_log.setLevel(level)

    def run(self, line: str) -> None:
        name, *words = line.split()
        positional = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{name.replace('-', '_')}")(*positional, **options)

    def do_load(self, **settings: str) -> None:
        for name, value in settings.items():
            setattr(self.driver.settings, name, int(value))
        self.driver.load()

    def do_resign(self) -> None:
        self.driver.resign()

    def do_wait(self, duration: str) -> None:
        self.driver.wait(int(duration))

    def do_set_wall_clock(self, step: str) -> None:
        self.driver.now_ms += int(step)

    def do_hold(self) -> None:
        self.driver.is_holding = True

    def do_refuse(self, error: str) -> None:
        """Let the next append fail."""
        self.driver.refused = ErrorCode[error]

    def do_written(self) -> None:
        self.driver.is_holding = False
        self.driver.release()

    def do_write_one(self) -> None:
        """Like `written`, but the writes that follow from it are held again."""
        self.driver.release()


class GroupPlayer(Player[GroupDriver]):
    """Commands of the group coordinator."""

    logger_name = "odradek.coordinator.groups.classic.group"

    def __init__(self) -> None:
        super().__init__(GroupDriver())

    def show(self, response: Any) -> str:
        return show(response)

    def show_record(self, record: CoordinatorRecord) -> str:
        return show_record(record)

    def do_start(self, **settings: str) -> None:
        self.use(GroupDriver(GroupSettings(**{name: int(value) for name, value in settings.items()})))
        self.driver.load()

    def do_state(self, group: str = "g") -> None:
        (described,) = self.driver.shard.describe_groups([group], RequestContext(api_version=6))
        members = " ".join(
            f"{item.member_id}{f'/{item.group_instance_id}' if item.group_instance_id else ''}"
            f"[{len(item.member_metadata)}B {item.member_assignment.decode()}]"
            for item in described.members
        )
        error = f" {ErrorCode(described.error_code).name}" if described.error_code else ""
        self.add_line(
            f"{group} is {described.group_state}{error} type={described.protocol_type} "
            f"protocol={described.protocol_data} members={members or '-'}"
        )

    def do_join(
        self, token: str, *, g: str = "g", id: str = "", instance: str | None = None, v: str = "9",
        type: str = "consumer", protocols: str = "range", topics: str = "t", data: str = "",
        session: str = "10000", rebalance: str = "60000", client: str = "c",
    ) -> None:  # fmt: skip
        metadata = subscription(topics.split(",") if topics else [], data.encode())
        request = JoinGroupRequest(
            group_id=g,
            session_timeout_ms=int(session),
            rebalance_timeout_ms=int(rebalance),
            member_id=id,
            group_instance_id=instance,
            protocol_type=type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols.split(",") if name],
        )
        self.driver.call("join_group", token, request, int(v), client)

    def do_sync(
        self, token: str, *, id: str, gen: str, g: str = "g", instance: str | None = None, v: str = "5",
        type: str | None = "consumer", protocol: str | None = "range", assign: str = "",
    ) -> None:  # fmt: skip
        request = SyncGroupRequest(
            group_id=g,
            generation_id=int(gen),
            member_id=id,
            group_instance_id=instance,
            protocol_type=None if type in ("null", None) else type,
            protocol_name=None if protocol in ("null", None) else protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=given.encode())
                for member, given in (pair.split(":") for pair in assign.split(",") if pair)
            ],
        )
        self.driver.call("sync_group", token, request, int(v))

    def do_beat(
        self, token: str, *, id: str, gen: str, g: str = "g", instance: str | None = None, v: str = "4"
    ) -> None:
        request = HeartbeatRequest(group_id=g, generation_id=int(gen), member_id=id, group_instance_id=instance)
        self.driver.call("heartbeat", token, request, int(v))

    def do_leave(self, token: str, *, ids: str, g: str = "g", v: str = "5") -> None:
        """`ids` has member ids, or member id/instance id, separated by commas."""
        pairs = [item.partition("/") for item in ids.split(",")]
        members = [
            LeaveGroupRequestMemberIdentity(member_id=member, group_instance_id=instance or None)
            for member, _, instance in pairs
        ]
        old = int(v) < 3
        request = LeaveGroupRequest(group_id=g, member_id=ids if old else "", members=[] if old else members)
        self.driver.call("leave_group", token, request, int(v))

    def do_commit(
        self, token: str, *, offsets: str, g: str = "g", gen: str = "-1", id: str = "", instance: str | None = None,
        v: str = "9", retention: str = "-1", meta: str = "",
    ) -> None:  # fmt: skip
        """`offsets` has topic:partition:offset, separated by commas; `meta` may be a length."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for item in offsets.split(","):
            name, partition, offset = item.split(":")
            topic = topics.setdefault(
                name, OffsetCommitRequestTopic(name=name, topic_id=name.encode().ljust(16, b"\x01"))
            )
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=int(partition),
                    committed_offset=int(offset),
                    committed_metadata="m" * int(meta) if meta.isdigit() else meta,
                )
            )
        request = OffsetCommitRequest(
            group_id=g,
            generation_id_or_member_epoch=int(gen),
            member_id=id,
            group_instance_id=instance,
            retention_time_ms=int(retention),
            topics=list(topics.values()),
        )
        self.driver.call("commit_offsets", token, request, int(v))

    def do_txn_commit(
        self, token: str, *, offsets: str, by: str, g: str = "g", gen: str = "-1", id: str = "",
        instance: str | None = None, v: str = "5", meta: str = "",
    ) -> None:  # fmt: skip
        """`by` is the producer: id/epoch."""
        producer_id, epoch = by.split("/")
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=g,
            producer_id=int(producer_id),
            producer_epoch=int(epoch),
            generation_id=int(gen),
            member_id=id,
            group_instance_id=instance,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=int(partition),
                            committed_offset=int(offset),
                            committed_metadata="m" * int(meta) if meta.isdigit() else meta,
                        )
                    ],
                )
                for name, partition, offset in (item.split(":") for item in offsets.split(","))
            ],
        )
        topic_ids = {topic.name: topic.name.encode().ljust(16, b"\x01") for topic in request.topics}
        self.driver.call("commit_offsets_in_transaction", token, request, int(v), topic_ids=topic_ids)

    def do_marker(self, kind: str, *, by: str) -> None:
        self.driver.mark(int(by), kind == "commit")

    def do_fetch(self, topics: str = "", *, g: str = "g", stable: str = "no") -> None:
        """`topics` has topic:partition, separated by commas; all topics if empty."""
        wanted = None
        if topics:
            wanted = [
                OffsetFetchRequestTopics(name=name, partition_indexes=[int(partition)])
                for name, partition in (item.split(":") for item in topics.split(","))
            ]
        response = self.driver.shard.fetch_offsets(
            OffsetFetchRequestGroup(group_id=g, topics=wanted),
            RequestContext(api_version=9),
            require_stable=stable == "yes",
        )
        found = [
            f"{topic.name}:{item.partition_index}:{item.committed_offset}"
            f"{f'({item.metadata})' if item.metadata else ''}"
            f"{f' {ErrorCode(item.error_code).name}' if item.error_code else ''}"
            for topic in response.topics
            for item in topic.partitions
        ]
        error = f"{ErrorCode(response.error_code).name} " if response.error_code else ""
        self.add_line(f"offsets of {g}: {error}{' '.join(found) or '-'}")

    def do_delete_offsets(self, token: str, offsets: str, *, g: str = "g") -> None:
        topics = [
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=int(partition))]
            )
            for name, partition in (item.split(":") for item in offsets.split(","))
        ]
        self.driver.call("delete_offsets", token, OffsetDeleteRequest(group_id=g, topics=topics), 0)

    def do_delete_groups(self, token: str, groups: str) -> None:
        self.driver.call("delete_groups", token, groups.split(","), 2)

    def do_list(self, *, states: str = "", types: str = "") -> None:
        try:
            wanted_states = [item.replace("_", " ") for item in states.split(",") if item]
            wanted_types = [item for item in types.split(",") if item]
            groups = run_at_once(self.driver.shard.list_groups(wanted_states, wanted_types))
        except KafkaError as error:
            self.add_line(f"groups: {error.code.name}")
            return
        listed = [f"{item.group_id}({item.group_type} {item.protocol_type} {item.group_state})" for item in groups]
        self.add_line(f"groups: {' '.join(listed) or '-'}")

    def do_topic_deleted(self, name: str) -> None:
        deleted = [DeletedTopic(name, name.encode().ljust(16, b"\x01"))]
        self.driver.take(self.driver.shard.topics_deleted(deleted, self.driver.now_ms))


def show(response: Any) -> str:
    """A response in one line."""
    if isinstance(response, JoinGroupResponse):
        if response.error_code:
            name = "" if response.protocol_name == "" else f" protocol={response.protocol_name}"
            return f"{ErrorCode(response.error_code).name} member={response.member_id}{name}"
        members = ",".join(item.member_id for item in response.members) or "-"
        skip = " skip-assignment" if response.skip_assignment else ""
        return (
            f"joined generation={response.generation_id} member={response.member_id} leader={response.leader} "
            f"{response.protocol_type}/{response.protocol_name} members={members}{skip}"
        )
    if isinstance(response, SyncGroupResponse):
        if response.error_code:
            return ErrorCode(response.error_code).name
        return f"synced {response.protocol_type}/{response.protocol_name} assignment={response.assignment.decode()!r}"
    parts = []
    if hasattr(response, "error_code"):
        parts.append(ErrorCode(response.error_code).name)
    for item in getattr(response, "members", ()):
        instance = f"/{item.group_instance_id}" if item.group_instance_id else ""
        parts.append(f"{item.member_id}{instance}={ErrorCode(item.error_code).name}")
    for item in getattr(response, "results", ()):
        parts.append(f"{item.group_id}={ErrorCode(item.error_code).name}")
    for topic in getattr(response, "topics", ()):
        parts += [f"{topic.name}:{item.partition_index}={ErrorCode(item.error_code).name}" for item in topic.partitions]
    return " ".join(parts)


def show_record(record: CoordinatorRecord) -> str:
    """A record in one line."""
    key = read_key(record.key)
    assert not isinstance(key, int)
    if isinstance(key, OffsetCommitKey):
        name = f"offset {key.group}/{key.topic}:{key.partition}"
        if record.value is None:
            return f"{name} deleted"
        commit = read_offset_commit_value(record.value)
        expiry = "" if commit.expire_timestamp == -1 else f" expires +{commit.expire_timestamp - START_MS}"
        return f"{name} = {commit.offset}{expiry}"
    if record.value is None:
        return f"group {key.group} deleted"
    value = read_group_metadata_value(record.value)
    members = " ".join(f"{item.member_id}[{item.assignment.decode()}]" for item in value.members) or "-"
    return (
        f"group {key.group} generation={value.generation} {value.protocol_type}/{value.protocol} "
        f"leader={value.leader} members={members}"
    )
