"""Offsets committed with a retention time: none expires early, and deleted ones are not returned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from odradek.simulation.checks.evidence import Evidence, Violation, ViolationKind
from odradek.simulation.history import OFFSETS_TOPIC, GroupDeletion, OffsetCommit, OffsetFetch, Outcome, name_of


def check_brief(
    evidence: Evidence, commits: Sequence[OffsetCommit], fetches: Sequence[OffsetFetch]
) -> Iterator[Violation]:
    """Check the fetches of a group and partition; the last commit takes effect."""
    crashes = evidence.crashes(OFFSETS_TOPIC)
    deletions = [one for one in evidence.history.group_deletions if one.group == commits[0].group]
    for fetch in fetches:
        before = [commit for commit in commits if commit.invoked.order < fetch.invoked.order]
        if not before or fetch.finished is None:
            continue
        last = before[-1]
        where = f"group {fetch.group} {name_of(fetch.partition)}: {fetch.client}"
        # A power loss may lose the tombstone of a deletion, as any other record.
        lasting = [one for one in deletions if crashes.era(one.invoked) == crashes.era(fetch.invoked)]
        if fetch.offset >= 0 and _is_deleted(before, lasting, fetch):
            yield Violation(ViolationKind.OFFSET_INVENTED, f"{where} got {fetch.offset} of a deleted group")
        if last.outcome is not Outcome.OK or crashes.era(last.invoked) != crashes.era(fetch.invoked):
            continue
        if any(_may_follow(deletion, last, fetch) for deletion in deletions):
            continue
        is_due = fetch.finished.time_ms < last.invoked.time_ms + last.retention_ms
        if evidence.is_clock_set(last.invoked, fetch.finished):
            is_due = False
        if fetch.offset != last.offset and (is_due or fetch.offset >= 0):
            yield Violation(
                ViolationKind.OFFSET_BACK, f"{where} got {fetch.offset} instead of {last.offset} before it expired"
            )


def _may_follow(deletion: GroupDeletion, commit: OffsetCommit, fetch: OffsetFetch) -> bool:
    """Return whether a deletion may have happened between a commit and a fetch."""
    if deletion.outcome is Outcome.FAILED or fetch.finished is None or deletion.invoked.order > fetch.finished.order:
        return False
    is_over = deletion.outcome is Outcome.OK and deletion.finished is not None
    return not is_over or deletion.finished is None or deletion.finished.order > commit.invoked.order


def _is_deleted(
    commits: Sequence[OffsetCommit], deletions: Sequence[GroupDeletion], fetch: OffsetFetch
) -> bool:
    """Return whether the group was deleted before the fetch, and no commit can have followed."""
    done = [
        deletion.invoked.order
        for deletion in deletions
        if deletion.outcome is Outcome.OK
        and deletion.finished is not None
        and deletion.finished.order < fetch.invoked.order
    ]
    if not done:
        return False
    # A commit without a response may be written late.
    return all(
        commit.outcome is Outcome.OK and commit.finished is not None and commit.finished.order < done[-1]
        for commit in commits
    )
