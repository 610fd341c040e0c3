"""`GroupShard`: the group coordinator of one partition of `__consumer_offsets`.

It is the only class of this package that handles requests. Only the replay functions of `ShardState` change persistent
state (groups with their last record, offsets): at append and during loading. A rebalance in progress is transient state
in memory. Use of a shard, which may also be `GroupShard.absent(...)` for a partition with another leader:

    result = shard.join_group(request, context, token, now_ms)
    while result.records:
        try: base_offset = append(result.records)
        except KafkaError as error: result = shard.on_write_failed(result, error.code, now_ms)
        else:
            shard.on_appended(result, base_offset, now_ms) immediately, and wait until the records are replicated
            (`is_replicated=True` if they and all before them are already)
            result = shard.on_written(result, base_offset, now_ms)
    wait until the record at result.after_offset is replicated, and send every reply of result.replies to its token

`now_ms` is the wall clock. `tick` is due at `next_deadline_ms`, on the shard's monotonic clock; it is called until no
deadline is due, and each result is handled as above. A result must be appended before the shard's next request or
`tick`. For a marker in the partition, `on_marker_appended` is called, later `on_replicated`. On election, `replay` is
called for every record of the partition (`replay_end_of_transaction` for every marker), then, when all of them are
replicated, `finish_loading`. On resignation, after which appended records may be truncated, `resign` is called, then
`on_write_failed` for every result that was not replicated.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.groups import admin as group_admin
from odradek.coordinator.groups import (
    offset_commands,
    offset_expiry,
    prechecks,
    responses,
    topic_deletion,
    transactional_offsets,
)
from odradek.coordinator.groups.classic import joining, membership, rebalance
from odradek.coordinator.groups.classic.group import DEAD, Group
from odradek.coordinator.groups.offsets import NO_PRODUCER_ID, OffsetStore
from odradek.coordinator.groups.records import (
    GroupChange,
    OffsetChange,
    OffsetCommitKey,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard_state import LARGE_KINDS, DeletedTopics, ShardState
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorResult, Response, Token, client_error
from odradek.coordinator.steps import Steps, pieces
from odradek.coordinator.timers import DEADLINES_PER_TICK
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_groups import DescribeGroupsResponseDescribedGroup
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.join_group import JoinGroupRequest
from odradek.protocol.messages.leave_group import LeaveGroupRequest
from odradek.protocol.messages.list_groups import ListGroupsResponseListedGroup
from odradek.protocol.messages.offset_commit import OffsetCommitRequest
from odradek.protocol.messages.offset_delete import OffsetDeleteRequest
from odradek.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from odradek.protocol.messages.sync_group import SyncGroupRequest
from odradek.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from odradek.protocol.types import ZERO_UUID, DecodeError

logger = logging.getLogger(__name__)

MEMBERS_PER_STEP: Final = 16
"""Members whose parked requests one step of a resignation rejects."""


class GroupShard:
    """Groups and committed offsets of one partition, from loading to resignation. No I/O, no threads."""

    __slots__ = ("_coordinator_state", "_state")

    def __init__(
        self, settings: GroupSettings, random_uuid: Callable[[], str], monotonic_ms: Callable[[], int]
    ) -> None:
        self._state = ShardState(settings, random_uuid, monotonic_ms)
        self._coordinator_state = CoordinatorState.LOADING

    @classmethod
    def absent(cls, settings: GroupSettings) -> "GroupShard":
        """Return a shard that rejects all requests with NOT_COORDINATOR, for a partition with another leader."""
        shard = cls(settings, str, int)
        shard._coordinator_state = CoordinatorState.CLOSED
        return shard

    @property
    def coordinator_state(self) -> CoordinatorState:
        return self._coordinator_state

    # -- membership ----------------------------------------------------------------------------------------------

    def join_group(
        self, request: JoinGroupRequest, context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """JoinGroup 0-9. Parked until the generation starts, unless the response is available immediately."""
        error = self._gate(prechecks.join_error_code(self._state.settings, request))
        if error:
            response = responses.join_error_without_protocol(error, request.member_id, context.api_version)
            return _only_reply(token, response)
        result = joining.join_group(self._state, request, context, token, now_ms)
        return self._after_replication(result, request.group_id)

    def sync_group(
        self, request: SyncGroupRequest, context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """SyncGroup 0-5. Parked until the leader's assignment is written."""
        error = self._gate(prechecks.sync_error_code(request, context.api_version))
        if error:
            return _only_reply(token, responses.sync_error(error))
        result = membership.sync_group(self._state, request, context, token, now_ms)
        return self._after_replication(result, request.group_id)

    def heartbeat(
        self, request: HeartbeatRequest, context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """Heartbeat 0-4. Succeeds while the shard is loading, as in Apache Kafka."""
        error = self._gate(prechecks.group_id_error(request.group_id))
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _only_reply(token, responses.heartbeat_response())
        if error:
            return _only_reply(token, responses.heartbeat_response(error))
        result = membership.heartbeat(self._state, request, token)
        return self._after_replication(result, request.group_id)

    def leave_group(
        self, request: LeaveGroupRequest, context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """LeaveGroup 0-5."""
        error = self._gate(prechecks.group_id_error(request.group_id))
        if error:
            return _only_reply(token, responses.leave_error(error))
        result = membership.leave_group(self._state, request, context, token, now_ms)
        return self._after_replication(result, request.group_id)

    def rebalance_timeout_ms(self, group_id: str) -> int:
        """Return how long a JoinGroup or SyncGroup waits for other members at most; 0 if there is no such group."""
        group = self._state.groups.get(group_id)
        return 0 if group is None else group.rebalance_timeout_ms()

    # -- administration ------------------------------------------------------------------------------------------

    def describe_groups(
        self, group_ids: list[str], context: RequestContext
    ) -> list[DescribeGroupsResponseDescribedGroup]:
        """DescribeGroups 0-6 for groups of this shard; authorized operations keep their default."""
        error = self._gate()
        if error:
            return responses.describe_groups_error(group_ids, error)
        return group_admin.describe_groups(self._state, group_ids, context)

    def count_groups(self) -> Steps[group_admin.GroupCounts]:
        """Return the numbers of groups and committed offsets, for metrics."""
        return group_admin.count_groups(self._state)

    def list_groups(
        self, states_filter: list[str], types_filter: list[str]
    ) -> Steps[list[ListGroupsResponseListedGroup]]:
        """ListGroups 0-5 for this shard. Raises COORDINATOR_LOAD_IN_PROGRESS, the error of the whole request."""
        if self._coordinator_state is CoordinatorState.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return group_admin.list_groups(self._state, states_filter, types_filter)

    def delete_groups(
        self, group_ids: list[str], context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """DeleteGroups 0-2 for groups of this shard; `group_ids` has no duplicates."""
        error = self._gate()
        if error:
            return _only_reply(token, responses.delete_groups_error(group_ids, error))
        result = group_admin.delete_groups(self._state, group_ids, token)
        return self._after_replication(result, *group_ids)

    # -- offsets -------------------------------------------------------------------------------------------------

    def prepare_commit(self, request: OffsetCommitRequest, now_ms: int) -> Steps[offset_commands.PreparedCommit]:
        """Prepare a large OffsetCommit; the result is passed to `commit_offsets`."""
        return offset_commands.prepare_commit(self._state.settings, request, now_ms)

    def commit_offsets(
        self,
        request: OffsetCommitRequest,
        context: RequestContext,
        token: Token,
        now_ms: int,
        prepared: offset_commands.PreparedCommit | None = None,
    ) -> CoordinatorResult:
        """OffsetCommit 2-10, for topics and partitions that exist, each with name and id (`offset_wire`)."""
        error = self._gate()
        if error:
            return _only_reply(token, responses.offset_commit_error(request, error))
        result = offset_commands.commit_offsets(self._state, request, context, token, now_ms, prepared)
        return self._after_replication(result, request.group_id)

    def commit_offsets_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        context: RequestContext,
        token: Token,
        now_ms: int,
        topic_ids: Mapping[str, bytes],
    ) -> CoordinatorResult:
        """TxnOffsetCommit 0-5, for topics and partitions that exist, by a producer with an ongoing transaction.

        The request has topic names; `topic_ids` has their ids. The result's records are to be written in the
        transaction of its `producer`.
        """
        error = self._gate(prechecks.group_id_error(request.group_id))
        if error:
            return _only_reply(token, responses.txn_offset_commit_error(request, error, context.api_version))
        result = transactional_offsets.commit_offsets(self._state, request, context, token, now_ms, topic_ids)
        return self._after_replication(result, request.group_id)

    def fetch_offsets(
        self,
        request: OffsetFetchRequestGroup,
        context: RequestContext,
        *,
        require_stable: bool,
        topic_id: Callable[[str], bytes] = lambda name: ZERO_UUID,
        offsets: OffsetStore | None = None,
    ) -> OffsetFetchResponseGroup:
        """OffsetFetch 1-10 for one group, in the form to which `offset_wire` converts every version.

        `topic_id` returns the id of the topic that currently has a name, ZERO_UUID if there is none. `offsets` is the
        result of `copy_offsets` if the request is a part of a larger one.
        """
        error = self._gate()
        if error:
            return responses.offset_fetch_error(request, error, context.api_version)
        return offset_commands.fetch_offsets(
            offsets or self._state.offsets, request, require_stable=require_stable, topic_id=topic_id
        )

    def count_offsets(self, group_id: str) -> int:
        """Return the number of a group's offsets."""
        return self._state.offsets.count(group_id)

    def copy_offsets(self, group_id: str) -> OffsetStore:
        """Copy a group's offsets, for a fetch in several steps."""
        return self._state.offsets.copy_of_group(group_id)

    def topics_with_offsets(self, group_id: str) -> dict[str, list[int]] | None:
        """Return the partitions, by topic, for which a group has offsets; None if the shard is not active."""
        return None if self._gate() else self._state.offsets.replicated_of_group(group_id)

    def delete_offsets(
        self, request: OffsetDeleteRequest, context: RequestContext, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """OffsetDelete 0, for topics and partitions that exist."""
        error = self._gate(prechecks.group_id_error(request.group_id))
        if error:
            return _only_reply(token, responses.offset_delete_error(error))
        result = offset_commands.delete_offsets(self._state, request, token)
        return self._after_replication(result, request.group_id)

    def topics_deleted(self, deleted: DeletedTopics, now_ms: int) -> CoordinatorResult:
        """Delete the offsets of deleted topics, in steps: the first here, the others in `tick`. Requires ACTIVE."""
        result = CoordinatorResult()
        topic_deletion.delete_offsets(self._state, deleted, result, now_ms)
        return result

    def topics_being_deleted(self) -> DeletedTopics:
        """Return the deleted topics whose offsets are not all deleted yet."""
        return [topic for deleted in self._state.deletions.values() for topic in deleted]

    # -- records -------------------------------------------------------------------------------------------------

    def on_appended(
        self, result: CoordinatorResult, base_offset: int, now_ms: int, *, is_replicated: bool = False
    ) -> None:
        """Apply the result's records, which are in the log from `base_offset` on and may not be replicated yet."""
        producer_id = NO_PRODUCER_ID if result.producer is None else result.producer.producer_id
        replay_offset = self._state.replay_offset
        for offset, record in enumerate(result.records, base_offset):
            change = record.change
            if isinstance(change, OffsetChange):
                replay_offset(change, offset, producer_id, is_replicated=is_replicated)
            elif isinstance(change, GroupChange):
                self._replay_group(change, offset, is_replicated=is_replicated)
            else:
                self._replay(record.key, record.value, offset, producer_id, is_replicated=is_replicated)
        for completion in result.completions:
            completion.applied(result, now_ms)

    def on_written(self, result: CoordinatorResult, base_offset: int, now_ms: int) -> CoordinatorResult:
        """Complete a result whose records are replicated. Return the next result, with replies and further records."""
        if self._coordinator_state is not CoordinatorState.ACTIVE:
            return self.on_write_failed(result, ErrorCode.NOT_COORDINATOR, now_ms)
        self._state.replicated_up_to(base_offset + len(result.records))
        following = CoordinatorResult()
        following.replies.extend(result.replies)
        for completion in result.completions:
            completion.written(following, now_ms)
        return following

    def on_write_failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> CoordinatorResult:
        """Complete a result whose records are not in the log, or whose shard has resigned. Return the next result.

        After a resignation the state on which the replies depend may be lost, so they are replaced by errors.
        """
        following = CoordinatorResult()
        if self._coordinator_state is CoordinatorState.ACTIVE:
            following.replies.extend(result.replies)
        else:
            for token, response in result.replies:
                following.reply(token, responses.with_error(response, client_error(error)))
        for completion in result.completions:
            completion.failed(following, client_error(error), now_ms)
        return following

    def on_write_timed_out(self, result: CoordinatorResult, now_ms: int) -> CoordinatorResult:
        """Send the responses of a result whose records were not replicated in time. Return the next result.

        The records stay in the log. `on_written` or `on_write_failed` is called later, with a result that has only
        the records.
        """
        following = CoordinatorResult()
        error = client_error(ErrorCode.REQUEST_TIMED_OUT)
        if result.records:
            following.replies.extend(result.replies)
        else:
            for token, response in result.replies:
                following.reply(token, responses.with_error(response, error))
        for completion in result.completions:
            completion.timed_out(following, error, now_ms)
        return following

    def on_marker_appended(
        self, producer_id: int, is_commit: bool, offset: int, *, is_replicated: bool = False
    ) -> None:
        """Apply a transaction marker that is in the log at `offset`.

        With `is_replicated` the states before it are not saved for readers, which halves the time of this step: it
        grows with the number of the transaction's offsets.
        """
        self._state.offsets.replay_end_of_transaction(producer_id, is_commit, offset, is_replicated=is_replicated)

    def on_replicated(self, end_offset: int) -> None:
        """Record that all records and markers below `end_offset` are replicated."""
        self._state.replicated_up_to(end_offset)

    def replay(self, key: bytes, value: bytes | None, offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition; `producer_id` is that of its batch if the batch is transactional.

        Records of unknown types and records that cannot be decoded are logged and skipped. A shard becomes active only
        after all of its records are replicated.
        """
        self._replay(key, value, offset, producer_id, is_replicated=True)

    def replay_end_of_transaction(self, producer_id: int, is_commit: bool, offset: int = -1) -> None:
        """Apply one transaction marker of the partition."""
        self._state.offsets.replay_end_of_transaction(producer_id, is_commit, offset)

    def _replay(self, key: bytes, value: bytes | None, offset: int, producer_id: int, *, is_replicated: bool) -> None:
        try:
            parsed = read_key(key)
            if isinstance(parsed, int):
                logger.warning("skipping record of unknown type type=%d offset=%d", parsed, offset)
            elif isinstance(parsed, OffsetCommitKey):
                commit = None if value is None else read_offset_commit_value(value)
                change = OffsetChange(parsed.group, parsed.topic, parsed.partition, commit)
                self._state.replay_offset(change, offset, producer_id, is_replicated=is_replicated)
            else:
                group = None if value is None else read_group_metadata_value(value)
                self._replay_group(GroupChange(parsed.group, group), offset, is_replicated=is_replicated)
        except DecodeError as error:
            logger.error("skipping record that cannot be decoded offset=%d error=%s", offset, error)

    def _replay_group(self, change: GroupChange, offset: int, *, is_replicated: bool) -> None:
        is_loading = self._coordinator_state is CoordinatorState.LOADING
        self._state.replay_group(change, offset, is_replicated=is_replicated, is_loading=is_loading)

    # -- election, resignation, deadlines ------------------------------------------------------------------------

    def finish_loading(self, now_ms: int) -> Steps[CoordinatorResult]:
        """Become active after the replay of all records. Sessions restart; groups that are too large rebalance."""
        result = CoordinatorResult()
        state = self._state
        for groups in pieces(state.groups.values()):
            for group in groups:
                for member in group.members.values():
                    rebalance.refresh_session(state, group, member)
                if len(group.members) > state.settings.max_group_size:
                    rebalance.start(state, group, "loaded with more members than group.max.size", result, now_ms)
            yield
        self._coordinator_state = CoordinatorState.ACTIVE
        offset_expiry.schedule_expiry(state)
        logger.debug("group shard loaded groups=%d", len(state.groups))
        return result

    def resign(self, now_ms: int) -> Iterator[CoordinatorResult]:
        """Discard the state: another broker becomes the coordinator, or the shard has to be loaded again.

        The shard is closed immediately; the iteration rejects parked requests with NOT_COORDINATOR, and frees the state
        in steps.
        """
        self._coordinator_state = CoordinatorState.CLOSED
        state = self._state
        self._state = ShardState(state.settings, state.random_uuid, state.timers.monotonic_ms)
        groups, state.groups = state.groups, {}
        return _discard(state, groups, now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due next, on the monotonic clock."""
        return self._state.timers.next_deadline_ms()

    def tick(self, now_ms: int) -> CoordinatorResult:
        """Handle a few due deadlines, up to the first that adds records or replies.

        Records must be applied before the next deadline, and replies do not wait for the records of another group.
        """
        result = CoordinatorResult()
        timers = self._state.timers
        due_ms = timers.monotonic_ms()
        for _ in range(DEADLINES_PER_TICK):
            deadline_ms = timers.next_deadline_ms()
            if deadline_ms is None or deadline_ms > due_ms:
                break
            key = timers.next_key()
            action = timers.pop_due(due_ms)
            if action is not None:
                action(result, now_ms)
            if result.records or result.replies or (key is not None and key[0] in LARGE_KINDS):
                break
        return result

    def _after_replication(self, result: CoordinatorResult, *group_ids: str) -> CoordinatorResult:
        """Make replies without records wait for an unreplicated record of the groups on which they depend."""
        if not result.records and result.replies:
            result.after_offset = max(map(self._state.awaited_offset, group_ids), default=-1)
        return result

    def _gate(self, error: ErrorCode = ErrorCode.NONE) -> ErrorCode:
        """Return the error of a request that precedes the lookup of its group."""
        return error or self._coordinator_state.value


def _only_reply(token: Token, response: Response) -> CoordinatorResult:
    result = CoordinatorResult()
    result.reply(token, response)
    return result


def _discard(state: ShardState, groups: dict[str, Group], now_ms: int) -> Iterator[CoordinatorResult]:
    """Reject the parked requests of each group, then free the state. A step rejects few requests."""
    for group_id in [*groups]:
        group = groups.pop(group_id)
        group.change_state(DEAD, "coordinator resigned", now_ms)
        for members in pieces(group.members.values(), MEMBERS_PER_STEP):
            result = CoordinatorResult()
            for member in members:
                error = responses.join_error(ErrorCode.NOT_COORDINATOR, member.member_id)
                responses.reply_to(result, group.take_join(member), error)
                responses.reply_to(result, member.take_sync(), responses.sync_error(ErrorCode.NOT_COORDINATOR))
            yield result
        yield CoordinatorResult()
    for _ in chain(state.offsets.visible.discard(), state.timers.discard()):
        yield CoordinatorResult()
