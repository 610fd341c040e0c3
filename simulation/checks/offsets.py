"""Committed offsets of groups: none decreases, all were committed, none is from an aborted transaction."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from odradek.simulation.checks.brief_offsets import check_brief
from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind, effective_outcome
from odradek.simulation.checks.transactions import is_committed
from odradek.simulation.history import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Isolation,
    LossyCrashes,
    Moment,
    OffsetCommit,
    OffsetFetch,
    Outcome,
    Partition,
    name_of,
)

_END = Moment(1 << 62, 0)
GroupPartition = tuple[str, Partition]


def check_offsets(evidence: Evidence) -> Iterator[Violation]:
    """Check every group and partition separately."""
    history = evidence.history
    commits, fetches = _commits_by_partition(evidence), _fetches_by_partition(evidence)
    for key in [key for key, found in commits.items() if found[0].retention_ms >= 0]:
        yield from check_brief(evidence, commits.pop(key), fetches.pop(key, []))
    brief = {commit.group for commit in history.commits if commit.retention_ms >= 0}
    for (group, partition), offset in evidence.final.offsets.items():
        if group in brief or _may_be_left(evidence, partition):
            continue
        final = OffsetFetch("the final read", _END, group, partition, offset, True)
        final.finished = _END
        fetches[group, partition].append(final)
    for key in dict.fromkeys([*commits, *fetches]):
        yield from _Positions(evidence, key, commits[key]).check(fetches[key])
    for (group, partition), offset in evidence.final.offsets.items():
        yield from _check_unread(evidence, group, partition, offset)


def find_stale_readers(evidence: Evidence) -> set[GroupPartition]:
    """Return the groups and partitions of which a member got an older offset than the committed one, in a cluster.

    A coordinator that has been replaced without its notice still returns the offsets that it has, as in Kafka. The
    member then processes the records after them again, in transactions that the next coordinator accepts.
    """
    if not evidence.history.settings.is_cluster:
        return set()
    commits, fetches = _commits_by_partition(evidence), _fetches_by_partition(evidence)
    return {key for key, found in fetches.items() if _Positions(evidence, key, commits[key]).has_stale(found)}


def _commits_by_partition(evidence: Evidence) -> dict[GroupPartition, list[OffsetCommit]]:
    commits: dict[GroupPartition, list[OffsetCommit]] = defaultdict(list)
    for commit in evidence.history.commits:
        commits[commit.group, commit.partition].append(commit)
    return commits


def _fetches_by_partition(evidence: Evidence) -> dict[GroupPartition, list[OffsetFetch]]:
    fetches: dict[GroupPartition, list[OffsetFetch]] = defaultdict(list)
    for fetch in evidence.history.fetches:
        fetches[fetch.group, fetch.partition].append(fetch)
    return fetches


def _may_be_left(evidence: Evidence, partition: Partition) -> bool:
    """Return whether offsets of a deleted topic may remain because a crash prevented or lost their deletion.

    The disk may also have refused the deletion, until a stop. Offsets of a name without a topic may belong to any of
    its lives, offsets of an existing topic to that topic only.
    """
    topic, is_life, _ = partition[0].partition("#")
    if not any(life.topic == topic for life in evidence.history.topics.lives):
        return False
    if is_life:
        return len(evidence.crashes(OFFSETS_TOPIC)) > 0
    return bool(evidence.history.crashes) or evidence.history.has_unfinished_end


def _may_be_of_the_life_before(evidence: Evidence, fetch: OffsetFetch) -> bool:
    """Return whether the metadata store may have lost the topic, so that remaining offsets of its name are returned."""
    history = evidence.history
    losses = [loss.order for loss in history.store_losses]
    is_lost = any(
        life.name == fetch.partition[0] and any(life.created.order < loss < fetch.invoked.order for loss in losses)
        for life in history.topics.lives
    )
    return is_lost and (bool(history.crashes) or history.has_unfinished_end)


class _Positions:
    """The commits of a group for a partition."""

    def __init__(self, evidence: Evidence, key: GroupPartition, commits: list[OffsetCommit]) -> None:
        self._evidence = evidence
        self._deletions = [
            deletion
            for deletion in evidence.history.group_deletions
            if deletion.group == key[0] and deletion.outcome is not Outcome.FAILED
        ]
        deletions = (deletion.invoked.order for deletion in self._deletions)
        self._crashes = _find_lossy_crashes(evidence, key[1][0]).with_more(deletions)
        self._polled = _polled_to(evidence, key)
        self._where = f"group {key[0]} {name_of(key[1])}"
        self._commits = commits
        acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for commit in commits:
            moment = self._acknowledged(commit)
            if moment is not None and not self._may_lie_beyond_the_end(commit) and not self._may_be_deleted(commit):
                era = self._crashes.era(commit.invoked)
                acknowledged[era].append((moment.order, commit.offset))
        self._orders: dict[int, list[int]] = {}
        self._highest: dict[int, list[int]] = {}
        for era, pairs in acknowledged.items():
            pairs.sort()
            self._orders[era] = [order for order, _ in pairs]
            highest = [-1]
            for _, offset in pairs:
                highest.append(max(highest[-1], offset))
            self._highest[era] = highest

    def has_stale(self, fetches: list[OffsetFetch]) -> bool:
        """Return whether a fetch before the end returned less than what had been acknowledged."""
        return any(self._is_back(fetch, self._origins(fetch)) for fetch in fetches if fetch.invoked is not _END)

    def check(self, fetches: list[OffsetFetch]) -> Iterator[Violation]:
        is_stale = self._evidence.history.settings.is_cluster and self.has_stale(fetches)
        for fetch in fetches:
            yield from self._check_fetch(fetch, is_stale)
        for commit in () if is_stale else self._commits:
            yield from self._check_commit(commit)

    def _check_commit(self, commit: OffsetCommit) -> Iterator[Violation]:
        least = self._least(commit.invoked)
        if self._acknowledged(commit) is not None and commit.offset < least:
            yield Violation(
                ViolationKind.OFFSET_BACK,
                f"{self._where}: commit of {commit.offset} by {commit.client} (generation {commit.generation}) was "
                f"accepted although {least} had been acknowledged before",
            )

    def _check_fetch(self, fetch: OffsetFetch, is_stale: bool) -> Iterator[Violation]:
        """Check a fetch. `is_stale`: a member got an older offset before, and may have continued there."""
        origins = self._origins(fetch)
        if fetch.offset >= 0 and not origins:
            if not _may_be_of_the_life_before(self._evidence, fetch):
                yield Violation(
                    ViolationKind.OFFSET_INVENTED, f"{self._where}: {fetch.client} got {fetch.offset}, never committed"
                )
        elif not is_stale and self._is_back(fetch, origins):
            yield Violation(
                ViolationKind.OFFSET_BACK,
                f"{self._where}: {fetch.client} got {fetch.offset} although {self._least(fetch.invoked, fetch.stable)} "
                "had been acknowledged before",
            )

    def _origins(self, fetch: OffsetFetch) -> list[OffsetCommit]:
        """Return the commits from which a fetched offset may be."""
        assert fetch.finished is not None
        return [
            commit
            for commit in self._commits
            if commit.offset == fetch.offset and self._may_count(commit, fetch.finished)
        ]

    def _is_back(self, fetch: OffsetFetch, origins: list[OffsetCommit]) -> bool:
        return fetch.offset < self._least(fetch.invoked, fetch.stable) and not self._may_be_lower(fetch, origins)

    def _may_be_lower(self, fetch: OffsetFetch, origins: list[OffsetCommit]) -> bool:
        """Return whether a fetched offset may be lower than acknowledged ones.

        A commit among its `origins` without a response may be stored late. A deletion of the group that was requested
        during the fetch may precede its response, which is then -1 or a commit after the deletion.
        """
        assert fetch.finished is not None
        if any(commit.lost for commit in origins):
            return True
        stored = [self._acknowledged(commit) for commit in origins]
        return any(
            fetch.offset < 0 or any(moment is None or moment.order > deletion.invoked.order for moment in stored)
            for deletion in self._deletions
            if fetch.invoked.order < deletion.invoked.order < fetch.finished.order
        )

    def _may_lie_beyond_the_end(self, commit: OffsetCommit) -> bool:
        """Return whether a crash after the commit may have lost the topic's tail, so that readers start before it."""
        era = self._evidence.crashes(commit.partition[0]).era(commit.invoked)
        if era == 0:
            return False
        orders, reached = self._polled.get(era, ([], []))
        before = bisect_left(orders, commit.invoked.order)
        return before == 0 or commit.offset > reached[before - 1]

    def _may_be_deleted(self, commit: OffsetCommit) -> bool:
        """Return whether a deletion of the group, requested before the commit was stored, may have followed it."""
        return any(
            deletion.outcome is not Outcome.OK
            or deletion.finished is None
            or deletion.finished.order > commit.invoked.order
            for deletion in self._deletions
            if commit.finished is None or deletion.invoked.order < commit.finished.order
        )

    def _acknowledged(self, commit: OffsetCommit) -> Moment | None:
        """Return the moment from which the commit is certainly stored."""
        if commit.outcome is not Outcome.OK:
            return None
        transaction = commit.transaction
        if transaction is None:
            return commit.finished
        if self._evidence.is_excused(transaction) or effective_outcome(transaction) is not Outcome.OK:
            return None
        return transaction.finished

    def _may_count(self, commit: OffsetCommit, until: Moment) -> bool:
        if commit.outcome is Outcome.FAILED or commit.invoked.order > until.order:
            return False
        transaction = commit.transaction
        if transaction is None or self._evidence.is_excused(transaction):
            return True
        requested_at = transaction.commit_invoked
        if requested_at is None or requested_at.order > until.order:
            return False
        return is_committed(self._evidence, transaction) is not False

    def _least(self, moment: Moment, stable: bool = True) -> int:
        """Return the lower bound of the committed offset at a moment.

        EndTxn gets its response before the markers are written, so a fetch without require_stable may return the
        previous offset for an unspecified time.
        """
        if not stable and any(commit.transaction is not None for commit in self._commits):
            return -1
        era = self._crashes.last_era if moment is _END else self._crashes.era(moment)
        orders = self._orders.get(era)
        if orders is None:
            return -1
        return self._highest[era][bisect_left(orders, moment.order)]


def _find_lossy_crashes(evidence: Evidence, topic: str) -> LossyCrashes:
    """Return the crashes that may have lost committed offsets of a topic.

    Offsets committed within transactions also depend on the log of the transaction coordinator. If the topic has lost
    its tail, consumers beyond its end restart from an earlier offset.
    """
    found = LossyCrashes([])
    for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, topic):
        found = found if len(found) else evidence.crashes(name)
    return found


def _polled_to(evidence: Evidence, key: GroupPartition) -> dict[int, tuple[list[int], list[int]]]:
    """Return, for each era of the topic, a group's read progress in a partition: orders, and the highest position."""
    group, partition = key
    crashes = evidence.crashes(partition[0])
    polls: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for poll in evidence.polls.get(partition, ()):
        if poll.group == group and poll.finished is not None:
            polls[crashes.era(poll.invoked)].append((poll.finished.order, poll.next_offset))
    found = {}
    for era, pairs in polls.items():
        pairs.sort()
        found[era] = ([order for order, _ in pairs], list(accumulate((offset for _, offset in pairs), max)))
    return found


def _check_unread(evidence: Evidence, group: str, partition: Partition, committed: int) -> Iterator[Violation]:
    """All records before the committed offset were returned to a member of the group."""
    ranges = sorted(
        (poll.fetch_offset, poll.next_offset) for poll in evidence.polls.get(partition, ()) if poll.group == group
    )
    if not ranges or len(_find_lossy_crashes(evidence, partition[0])):
        return
    reached = 0
    gaps = []
    for start, end in ranges:
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    gaps.append((reached, 1 << 62))
    offsets = sorted(evidence.final_records(partition, Isolation.READ_COMMITTED))
    for start, end in gaps:
        position = bisect_left(offsets, start)
        if position < len(offsets) and offsets[position] < min(end, committed):
            yield Violation(
                ViolationKind.UNREAD_COMMIT,
                f"group {group} {name_of(partition)}: {committed} is committed, but no member got {offsets[position]}",
            )
            return
