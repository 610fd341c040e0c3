"""Truncation of followers, scene by scene after the KIPs: real logs, real fetchers, a leader that compares epochs."""

import pytest

from odradek.log.producers import replay
from odradek.log.tests.support import start_over
from odradek.protocol.records import build_batch
from odradek.replication.following.fetched_partition import FetchState
from odradek.replication.following.tests.cluster import LogCluster, batches, describe


def assert_converged(cluster, *numbers):
    leader = cluster.leader()
    for number in numbers or cluster.nodes:
        assert describe(cluster.nodes[number].log()) == describe(leader.log()), number


def epochs(node):
    return node.log().leader_epochs.entries


def test_a_restarted_follower_keeps_records_above_its_high_watermark():
    """KIP-101, scenario 1: truncation to the high watermark followed by an immediate leader election.

    The follower has both messages, but it has not received the high watermark of the second one when it restarts. The
    leader fails before the follower has fetched anything. Truncation to the high watermark would lose the message.
    """
    cluster = LogCluster()
    cluster.elect(2)
    cluster.append(b"m1")
    cluster.run()
    cluster.change_rows(high_watermark=1)
    cluster.append(b"m2")
    cluster.run()
    follower = cluster.nodes[1]
    assert (follower.log().log_end_offset, follower.log().high_watermark) == (2, 1)
    follower.stop()
    cluster.restart(1)
    cluster.nodes[2].crash()
    cluster.inform(1)
    cluster.run()
    assert follower.log().log_end_offset == 2
    cluster.elect(1)
    assert [offset for offset, _, _ in batches(follower.log())] == [0, 1]


def test_replicas_that_lost_different_records_converge():
    """KIP-101, scenario 2: divergence on restart after multiple hard failures.

    Both replicas lose power. The one without the second message starts first and appends another one at its offset.
    """
    cluster = LogCluster()
    cluster.elect(1)
    cluster.append(b"m1")
    cluster.run()
    cluster.nodes[2].log().flush(0)
    cluster.append(b"m2")
    cluster.run()
    cluster.nodes[1].log().flush(0)
    cluster.nodes[1].crash()
    cluster.nodes[2].crash()
    cluster.restart(2)
    cluster.elect(2)
    assert cluster.nodes[2].log().log_end_offset == 1
    cluster.append(b"m3")
    cluster.restart(1)
    cluster.inform(1)
    assert cluster.nodes[1].log().log_end_offset == 2
    cluster.run()
    assert batches(cluster.nodes[1].log()) == [(0, 0, 0), (1, 1, 1)]
    assert_converged(cluster)


def test_a_tail_of_the_last_leader_is_replaced():
    """KIP-320: divergence in one epoch, found in the fetch response (KIP-595)."""
    cluster = LogCluster()
    cluster.elect(1)
    for number in range(5):
        cluster.append(b"%d" % number)
    cluster.run()
    cluster.cuts.add(frozenset((1, 2)))
    for number in range(20):
        cluster.append(b"lost %d" % number)
    cluster.elect(2, informed=[2])
    cluster.append(b"kept")
    cluster.cuts.clear()
    cluster.inform(1)
    cluster.run()
    assert epochs(cluster.nodes[1]) == [(0, 0), (1, 5)]
    assert_converged(cluster)


def diverge(cluster):
    """Give the brokers logs with different epochs: on 1 these are 0, 3, 6 and on 2 they are 0, 1, 2, 5."""
    cluster.elect(1, isr=(1,))
    for _ in range(3):
        cluster.append()
    cluster.run()
    cluster.cuts.add(frozenset((1, 2)))
    node1, node2 = cluster.nodes.values()
    for _ in range(2):
        cluster.append(node=node1)
    for epoch, leader, count in ((1, 2, 1), (2, 2, 3), (3, 1, 4), (5, 2, 2), (6, 1, 1)):
        cluster.elect(leader, epoch=epoch, isr=(leader,), informed=[leader])
        for _ in range(count):
            cluster.append(b"epoch %d" % epoch, node=cluster.nodes[leader])
    assert epochs(node1) == [(0, 0), (3, 5), (6, 9)]
    assert epochs(node2) == [(0, 0), (1, 3), (2, 4), (5, 7)]
    cluster.cuts.clear()


def test_truncation_over_several_epochs():
    """KIP-279: the follower does not have the epoch that the leader returns, so it asks again with an earlier one."""
    cluster = LogCluster()
    diverge(cluster)
    follower = cluster.nodes[2]
    cluster.nodes[1].requests.clear()
    cluster.elect(1, epoch=7, isr=(1,))
    cluster.run(10)
    fetches = [row for request in cluster.nodes[1].requests for topic in request.topics for row in topic.partitions]
    # The leader's floor of 5 is 3, of which the follower's floor is 2; the leader's floor of 2 is 0.
    assert [(row.fetch_offset, row.last_fetched_epoch) for row in fetches[:3]] == [(9, 5), (7, 2), (3, 0)]
    cluster.append()
    cluster.run()
    assert_converged(cluster)
    assert epochs(follower) == [(0, 0), (3, 5), (6, 9), (7, 10)]


def test_truncation_when_the_leader_has_fewer_epochs():
    """The other direction of KIP-279: the follower has epochs that the leader does not have."""
    cluster = LogCluster()
    diverge(cluster)
    cluster.elect(2, epoch=7, isr=(2,))
    cluster.run()
    cluster.append(b"new")
    cluster.run()
    assert_converged(cluster)
    assert epochs(cluster.nodes[1]) == [(0, 0), (1, 3), (2, 4), (5, 7), (7, 9)]


def test_an_epoch_without_records_is_removed():
    """A leader that appended nothing has an epoch at its log end, which its successor does not have."""
    cluster = LogCluster()
    cluster.elect(1)
    cluster.append()
    cluster.run()
    cluster.elect(1, epoch=1, informed=[1])
    assert epochs(cluster.nodes[1]) == [(0, 0), (1, 1)]
    cluster.elect(2, epoch=2)
    cluster.append()
    cluster.run()
    assert epochs(cluster.nodes[1]) == [(0, 0), (2, 1)]
    assert_converged(cluster)


def compacted(base_offset, epoch, count=1):
    return memoryview(
        build_batch([(0, b"k", b"v", ())] * count, base_offset=base_offset, partition_leader_epoch=epoch)
    )


def test_compacted_logs_with_missing_offsets():
    """Offsets that compaction removed are missing in the follower's log too, also at the begin of an epoch."""
    cluster = LogCluster()
    cluster.elect(1, isr=(1,), epoch=4)
    cluster.run(10)
    leader = cluster.nodes[1]
    leader.log().leader_epochs.clear()
    for offset, epoch in ((3, 0), (5, 0), (9, 2), (14, 3)):
        leader.log().append_as_follower(compacted(offset, epoch), now_ms=0)
    cluster.elect(1, isr=(1,), epoch=5)
    cluster.run()
    assert batches(cluster.nodes[2].log()) == [(3, 0, 3), (5, 0, 5), (9, 2, 9), (14, 3, 14)]
    cluster.append()
    cluster.run()
    assert_converged(cluster)


def test_divergence_in_a_range_that_compaction_removed():
    """The follower's own end of the epoch bounds the truncation: the leader's has moved with the removed offsets."""
    cluster = LogCluster()
    cluster.elect(1, isr=(1,), epoch=8)
    leader, follower = cluster.nodes.values()
    cluster.nodes[1].crash()
    follower_log = follower.log()
    for offset, epoch in ((0, 0), (6, 1), (9, 4), (10, 5)):
        follower_log.append_as_follower(compacted(offset, epoch), now_ms=0)
    cluster.restart(1)
    cluster.elect(1, epoch=8, isr=(1,), informed=[1])
    leader.log().leader_epochs.clear()
    for offset, epoch in ((0, 0), (8, 2), (12, 6)):
        leader.log().append_as_follower(compacted(offset, epoch), now_ms=0)
    cluster.elect(1, epoch=9, isr=(1,))
    cluster.run()
    assert batches(follower_log) == [(0, 0, 0), (8, 2, 8), (12, 6, 12)]


def test_an_empty_leader_empties_its_followers():
    """The leader lost its disk and was elected uncleanly."""
    cluster = LogCluster()
    cluster.elect(2)
    for _ in range(40):
        cluster.append()
    cluster.run()
    assert len(cluster.nodes[2].log().segments) > 1
    cluster.elect(1, informed=[])
    cluster.nodes[1].apply(0, cluster.state[0])
    start_over(cluster.nodes[1].log(), 0, 0)
    cluster.nodes[1].log().elect(1)
    cluster.inform(2)
    cluster.run()
    assert (cluster.nodes[2].log().log_end_offset, cluster.nodes[2].log().high_watermark) == (0, 0)
    cluster.append(b"new")
    cluster.run()
    assert_converged(cluster)


def test_a_follower_ahead_of_a_leader_that_was_elected_uncleanly():
    cluster = LogCluster(3)
    cluster.elect(1, isr=(1, 2))
    cluster.append()
    cluster.run()
    cluster.cuts |= {frozenset((1, 3)), frozenset((2, 3))}
    for _ in range(5):
        cluster.append()
    cluster.run()
    assert cluster.nodes[2].log().high_watermark == 6
    cluster.cuts.clear()
    cluster.nodes[1].crash()
    cluster.elect(3, isr=(3,))
    cluster.run()
    assert cluster.nodes[2].log().log_end_offset == cluster.nodes[2].log().high_watermark == 1
    cluster.append(b"new")
    cluster.run()
    assert_converged(cluster, 2, 3)


def test_a_longer_log_without_epochs_in_common_is_truncated_to_the_leaders_end(caplog):
    """The leader has no epoch to compare with, so it answers OFFSET_OUT_OF_RANGE."""
    cluster = LogCluster()
    cluster.elect(1, isr=(1,), epoch=3)
    for _ in range(6):
        cluster.append()
    cluster.run()
    start_over(cluster.nodes[1].log(), 0, 0)
    cluster.append(b"other")
    cluster.nodes[1].log().leader_epochs.clear()
    cluster.elect(1, isr=(1,), epoch=3, informed=[])
    cluster.nodes[2].fetchers.unfollow(cluster.nodes[2].partitions[0])
    cluster.inform(2)
    cluster.run(100)
    assert cluster.nodes[2].log().log_end_offset == 1
    assert "the leader's log ends at 1" in caplog.text


def test_a_follower_before_the_leaders_log_start_starts_over():
    """The follower was down for longer than the retention."""
    cluster = LogCluster()
    cluster.elect(1)
    for _ in range(3):
        cluster.append()
    cluster.run()
    cluster.nodes[2].stop()
    for _ in range(37):
        cluster.append()
    leader = cluster.nodes[1].log()
    leader.update_high_watermark(40)
    leader.delete_records_before(30)
    leader.remove_deleted(leader.delete_old_segments(0))
    cluster.restart(2)
    cluster.inform(2)
    cluster.run()
    follower = cluster.nodes[2].log()
    assert (follower.log_start_offset, follower.log_end_offset, follower.high_watermark) == (30, 40, 40)
    assert follower.leader_epochs.entries == [(0, 30)]
    assert batches(follower)[0][0] == 30


def test_a_log_start_in_the_middle_of_a_batch():
    """DeleteRecords moved the leader's log start into a batch: the follower's copy begins below its log start."""
    cluster = LogCluster()
    cluster.elect(1, isr=(1,), informed=[1])
    cluster.append(*[b"v"] * 10)
    cluster.append(*[b"v"] * 10)
    cluster.nodes[1].log().delete_records_before(14)
    cluster.inform(2)
    cluster.run()
    follower = cluster.nodes[2].log()
    assert (follower.log_start_offset, follower.log_end_offset) == (14, 20)
    assert batches(follower) == [(10, 0, 19)]


def test_a_divergence_at_a_log_start_in_the_middle_of_a_batch():
    """The leader's first epoch begins in the middle of a batch, where its log starts and the follower's log is cut."""
    cluster = LogCluster()
    cluster.elect(2, isr=(2,), informed=[2])
    for _ in range(20):
        cluster.append()
    cluster.elect(1, isr=(1,), informed=[1])
    cluster.append(*[b"v"] * 10)
    cluster.append(*[b"v"] * 10)
    cluster.nodes[1].log().delete_records_before(14)
    cluster.inform(2)
    cluster.run()
    follower = cluster.nodes[2].log()
    assert (follower.log_start_offset, follower.log_end_offset) == (14, 20)
    assert batches(follower) == [(10, 1, 19)]
    assert epochs(cluster.nodes[2]) == [(1, 14)]


def test_a_log_without_epochs_is_truncated_to_its_high_watermark(caplog):
    """Without epochs nothing shows where the logs diverge: only records below the high watermark are in both."""
    cluster = LogCluster()
    cluster.elect(1)
    for _ in range(6):
        cluster.append()
    cluster.run()
    follower = cluster.nodes[2]
    follower.log().update_high_watermark(4)
    follower.log().leader_epochs.clear()
    caplog.set_level("INFO")
    cluster.elect(1, informed=[1])
    follower.partitions[0].apply(cluster.state[0], follower.log())
    follower.fetchers.follow(follower.partitions[0])
    assert [fetched.state for fetched in follower.fetched.values()] == [FetchState.TRUNCATING]
    cluster.run()
    assert "old_end=6 new_end=4 high_watermark=4 reason=its leader epochs are unknown" in caplog.text
    assert follower.fetched[0].state is FetchState.FETCHING
    assert describe(follower.log())[0] == describe(cluster.nodes[1].log())[0]


def test_the_high_watermark_of_a_diverging_response_is_not_adopted():
    cluster = LogCluster()
    diverge(cluster)
    adopted = []
    follower = cluster.nodes[2].log()
    update = follower.update_high_watermark

    def note(offset):
        adopted.append((offset, follower.log_end_offset))
        return update(offset)

    follower.update_high_watermark = note
    cluster.elect(1, epoch=7, isr=(1,))
    cluster.run()
    assert adopted[0] == (10, 10)
    assert follower.high_watermark == 10


@pytest.mark.parametrize("adopted", [0, 4, 7, 9])
def test_the_followers_high_watermark_is_bounded_by_its_log(adopted):
    cluster = LogCluster()
    cluster.elect(1, isr=(1,))
    for _ in range(6):
        cluster.append()
    cluster.run()
    cluster.nodes[2].log().advance_log_start(3)
    cluster.change_rows(high_watermark=adopted)
    cluster.append()
    cluster.run()
    assert cluster.nodes[2].log().high_watermark == min(max(3, adopted), 7)


def truncate_slowly(cluster, monkeypatch):
    """Begin a truncation by the follower, broker 2, from 20 to 5 batches; return after its first step."""
    monkeypatch.setattr(replay, "_BATCHES_PER_STEP", 1)
    cluster.elect(1, isr=(1,))
    for number in range(5):
        cluster.append(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
    cluster.run()
    cluster.cuts.add(frozenset((1, 2)))
    cluster.elect(2, isr=(2,), informed=[2])
    for number in range(5, 20):
        cluster.append(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
    cluster.elect(1, isr=(1,), informed=[])
    cluster.cuts.clear()
    cluster.nodes[1].apply(0, cluster.state[0])
    follower = cluster.nodes[2]
    begun = []
    truncate = follower.logs.truncate_in_steps

    def note(*arguments):
        begun.append(arguments)
        return truncate(*arguments)

    follower.logs.truncate_in_steps = note
    cluster.inform(2)
    for _ in range(1000):
        if begun:
            break
        cluster.world.run_once()
    assert begun == [("t", 0, 5, cluster.world.now_ms)]
    assert follower.log().log_end_offset == 20
    return follower


def test_a_truncation_in_steps(monkeypatch):
    cluster = LogCluster()
    truncate_slowly(cluster, monkeypatch)
    cluster.append(b"new")
    cluster.run()
    assert_converged(cluster)
    assert cluster.nodes[2].log().producer_state.producers[7].last_sequence == 4


def test_a_leadership_change_between_the_steps_of_a_truncation(monkeypatch):
    """The broker leads: its log is the one that counts."""
    cluster = LogCluster()
    follower = truncate_slowly(cluster, monkeypatch)
    cluster.elect(2, isr=(2,))
    cluster.append(b"new")
    cluster.run()
    assert follower.log().log_end_offset == 21
    assert_converged(cluster)


def test_a_deletion_between_the_steps_of_a_truncation(monkeypatch):
    cluster = LogCluster()
    follower = truncate_slowly(cluster, monkeypatch)
    log, partition = follower.log(), follower.partitions.pop(0)
    follower.fetchers.unfollow(partition)
    partition.retire()
    follower.logs.delete_log("t", 0)
    cluster.run()
    assert log.log_end_offset == 20


def test_a_shutdown_between_the_steps_of_a_truncation(monkeypatch):
    cluster = LogCluster()
    follower = truncate_slowly(cluster, monkeypatch)
    log = follower.log()
    follower.stop()
    cluster.run()
    assert log.log_end_offset == 20


def test_another_fetcher_between_the_steps_of_a_truncation(monkeypatch):
    cluster = LogCluster()
    follower = truncate_slowly(cluster, monkeypatch)
    follower.fetchers.resize(7)
    cluster.append(b"new")
    cluster.run()
    assert_converged(cluster)


def test_a_truncation_is_durable_before_the_next_fetch(monkeypatch):
    cluster = LogCluster()
    follower = truncate_slowly(cluster, monkeypatch)
    syncs = []
    monkeypatch.setattr(follower.logs, "flush", lambda log, done: syncs.append(done))
    cluster.nodes[1].requests.clear()
    cluster.append(b"new")
    cluster.run()
    assert (follower.log().log_end_offset, follower.log().has_unsynced_truncation, len(syncs)) == (5, True, 1)
    assert cluster.nodes[1].requests == []
    follower.log().complete_truncation()
    syncs[0](None)
    cluster.run()
    assert_converged(cluster)


def test_a_truncation_is_durable_before_the_first_append_of_a_leader(monkeypatch):
    cluster = LogCluster()
    follower = truncate_slowly(cluster, monkeypatch)
    monkeypatch.setattr(follower.logs, "flush", lambda log, done: None)
    cluster.run()
    assert follower.log().has_unsynced_truncation
    cluster.elect(2, isr=(2,))
    assert not follower.log().has_unsynced_truncation
    follower.crash()
    cluster.restart(2)
    cluster.inform(2)
    assert [offset for offset, _, _ in batches(follower.log())] == list(range(5))
