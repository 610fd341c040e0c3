"""Fetchers: records, offsets, sessions, errors, and the assignment of partitions to fetchers."""

import errno
import logging

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from odradek.replication.following.fetch_session import FetcherSession
from odradek.replication.following.fetched_partition import FetchState
from odradek.replication.following.offset_reset import OffsetReset
from odradek.replication.following.settings import FetcherSettings
from odradek.replication.following.tests.cluster import LogCluster, World, batches, describe


def assert_equal_logs(cluster, index=0):
    logs = [node.log(index) for node in cluster.nodes.values()]
    assert describe(logs[0]) == describe(logs[1])


def fetches(node):
    return [request for request in node.requests if isinstance(request, FetchRequest)]


def fetched_rows(request):
    return {row.partition: row for topic in request.topics for row in topic.partitions}


def test_a_follower_copies_the_leaders_log():
    cluster = LogCluster()
    cluster.elect(1)
    for number in range(40):
        cluster.append(b"%d" % number, b"x" * 20)
    cluster.run()
    assert_equal_logs(cluster)
    assert cluster.nodes[2].log().high_watermark == 80
    assert len(cluster.nodes[2].log().segments) > 2
    cluster.append(b"later")
    cluster.run()
    assert_equal_logs(cluster)


def test_the_request_of_a_follower():
    settings = FetcherSettings(max_wait_ms=300, min_bytes=5, partition_max_bytes=700, response_max_bytes=900)
    cluster = LogCluster(settings=settings)
    cluster.elect(1, epoch=4)
    cluster.append()
    cluster.run()
    cluster.nodes[2].log().advance_log_start(1)
    cluster.elect(1, epoch=6)
    cluster.run()
    requests = fetches(cluster.nodes[1])
    first = requests[0]
    changed = next(r for r in requests[1:] if r.topics and fetched_rows(r)[0].current_leader_epoch == 6)
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 102)
    assert (first.max_wait_ms, first.min_bytes, first.max_bytes, first.isolation_level) == (300, 5, 900, 0)
    assert (first.session_id, first.session_epoch, changed.session_id) == (0, 0, 1)
    row = fetched_rows(changed)[0]
    assert (row.fetch_offset, row.last_fetched_epoch, row.log_start_offset, row.partition_max_bytes) == (1, 4, 1, 700)


def test_unchanged_partitions_are_not_repeated_in_a_session():
    cluster = LogCluster(partitions=3)
    for index in range(3):
        cluster.elect(1, index=index)
    cluster.run()
    cluster.nodes[1].requests.clear()
    cluster.append(index=1)
    cluster.run()
    assert [sorted(fetched_rows(request)) for request in fetches(cluster.nodes[1])[:3]] == [[1], [], []]
    assert all(request.session_epoch > 0 for request in fetches(cluster.nodes[1]))


def test_a_fetcher_makes_few_rows_of_a_request_between_two_pauses(monkeypatch):
    events, put, pause = [], FetcherSession.put, World.pause

    def recorded_put(session, key, row):
        events.append("r")
        put(session, key, row)

    async def recorded_pause(world):
        events.append(" ")
        await pause(world)

    monkeypatch.setattr(FetcherSession, "put", recorded_put)
    monkeypatch.setattr(World, "pause", recorded_pause)
    cluster = LogCluster(partitions=100)
    for index in range(100):
        cluster.elect(1, index=index)
    cluster.run()
    assert events.count("r") >= 100
    assert max(map(len, "".join(events).split())) <= 16


def test_a_partition_that_is_no_longer_followed_is_forgotten():
    cluster = LogCluster()
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()
    cluster.nodes[1].requests.clear()
    cluster.elect(2, index=1)
    cluster.run()
    forgotten = [row.partitions for request in fetches(cluster.nodes[1]) for row in request.forgotten_topics_data]
    assert forgotten == [[1]]
    cluster.append(index=1)
    cluster.append(index=0)
    cluster.run()
    assert_equal_logs(cluster)
    assert_equal_logs(cluster, 1)


def test_a_broker_that_shuts_down_follows_no_new_leader():
    """Otherwise the new leader proposes it for the ISR, which the controller rejects."""
    cluster = LogCluster(count=3)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()
    cluster.nodes[3].fetchers.finish()
    cluster.elect(2, index=1)
    cluster.append(index=0)
    cluster.nodes[3].requests.clear()
    cluster.nodes[2].requests.clear()
    cluster.run()
    assert list(cluster.nodes[3].fetched) == [0]
    assert_equal_logs(cluster, 0)
    assert 3 not in {request.replica_state.replica_id for request in fetches(cluster.nodes[2])}


@pytest.mark.parametrize(
    "change", [lambda node: node.sessions.clear(), lambda node: setattr(node.sessions[1], "epoch", 77)]
)
def test_a_session_that_the_leader_has_lost_is_opened_again(change):
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()
    change(cluster.nodes[1])
    cluster.append()
    started_ms = cluster.world.now_ms
    cluster.run(600)
    assert_equal_logs(cluster)
    full = [request for request in fetches(cluster.nodes[1]) if request.session_epoch == 0]
    assert len(full) == 2
    assert sorted(fetched_rows(full[1])) == [0, 1]
    assert cluster.world.now_ms - started_ms < 1000, "without a delay"


def test_a_leader_without_room_for_sessions():
    cluster = LogCluster(partitions=2)
    cluster.changes.append(lambda response: setattr(response, "session_id", 0))
    for index in range(2):
        cluster.elect(1, index=index)
        cluster.append(index=index)
    cluster.run()
    assert {(request.session_id, request.session_epoch) for request in fetches(cluster.nodes[1])} == {(0, 0)}
    assert_equal_logs(cluster)
    assert_equal_logs(cluster, 1)


def test_an_error_of_every_session_is_retried_after_a_delay():
    cluster = LogCluster()
    cluster.changes.append(lambda response: setattr(response, "error_code", ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR))
    cluster.elect(1)
    cluster.run(10_000)
    assert 8 <= len(fetches(cluster.nodes[1])) <= 12
    cluster.changes.clear()
    cluster.append()
    cluster.run()
    assert_equal_logs(cluster)


def test_an_incomplete_response_to_a_full_fetch_is_refused():
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index, informed=[1])
        cluster.append(index=index)
    cluster.changes.append(lambda response: response.responses.pop())
    for index in range(2):
        cluster.inform(2, index)
    cluster.run(500)
    assert [cluster.nodes[2].log(index).log_end_offset for index in range(2)] == [0, 0]
    cluster.changes.clear()
    cluster.run()
    assert_equal_logs(cluster)


def test_no_leader_is_fetched_from_before_it_is_in_the_metadata_cache():
    cluster = LogCluster()
    known = cluster.brokers.pop(1)
    cluster.elect(1)
    cluster.append()
    cluster.run(5000)
    assert (cluster.nodes[2].channels, cluster.nodes[1].requests) == (0, [])
    cluster.brokers[1] = known
    cluster.run(2000)
    assert_equal_logs(cluster)


def test_a_new_address_of_the_leader_is_used():
    cluster = LogCluster()
    cluster.elect(1)
    cluster.run()
    known = cluster.brokers[1]
    cluster.brokers[1] = known._replace(endpoints=(known.endpoints[0]._replace(port=1234),))
    cluster.append()
    cluster.run()
    assert cluster.nodes[2].channels == 2
    assert_equal_logs(cluster)


def test_an_unavailable_leader_is_retried_after_the_backoff(caplog):
    caplog.set_level("INFO")
    cluster = LogCluster()
    cluster.elect(1)
    cluster.append()
    cluster.cuts.add(frozenset((1, 2)))
    cluster.run(10_000)
    assert 8 <= cluster.nodes[2].channels <= 12
    cluster.cuts.clear()
    cluster.run(2000)
    assert_equal_logs(cluster)
    assert (caplog.text.count("is unavailable"), caplog.text.count("is available again")) == (1, 1)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        31_000,
    ],
)
def test_an_error_delays_its_partition_only(code):
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.change_rows(0, error_code=code)
    for index in range(2):
        cluster.append(index=index)
    cluster.run(900)
    follower = cluster.nodes[2]
    assert follower.fetched[0].state is FetchState.DELAYED
    assert_equal_logs(cluster, 1)
    for _ in range(50):
        cluster.append(index=1)
        cluster.run(100)
    assert_equal_logs(cluster, 1)
    asked = [request for request in fetches(cluster.nodes[1]) if 0 in fetched_rows(request)]
    assert 4 <= len(asked) <= 8
    cluster.changes.clear()
    cluster.run(2000)
    assert_equal_logs(cluster)


def test_partitions_that_the_leader_does_not_have_yet_are_logged_in_one_line(caplog):
    caplog.set_level(logging.INFO, "odradek.replication.following")
    cluster = LogCluster(partitions=12)
    for index in range(12):
        cluster.elect(1, index=index)
        code = ErrorCode.UNKNOWN_TOPIC_ID if index < 3 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.change_rows(index, error_code=code)
    cluster.run(900)
    failures = [record.args for record in caplog.records if "replica fetch failed" in record.msg]
    assert sum(count for count, _, _ in failures) == 12
    assert failures[-1][0] > 1
    assert len(failures) <= 4
    caplog.clear()
    cluster.run(1000)
    failures = [record.args for record in caplog.records if "replica fetch failed" in record.msg]
    assert sorted((count, error.partition(":")[0]) for count, _, error in failures) == [
        (3, "UNKNOWN_TOPIC_ID"),
        (9, "NOT_LEADER_OR_FOLLOWER"),
    ]


def test_a_fenced_partition_is_parked_until_the_next_leader_epoch():
    cluster = LogCluster()
    cluster.elect(1)
    cluster.elect(1, informed=[1])
    cluster.append()
    cluster.run()
    follower = cluster.nodes[2]
    assert follower.fetched[0].state is FetchState.PARKED
    count = len(fetches(cluster.nodes[1]))
    cluster.run(20_000)
    assert len(fetches(cluster.nodes[1])) <= count + 1
    cluster.inform(2)
    cluster.run()
    assert_equal_logs(cluster)


def test_a_leader_that_has_not_heard_of_its_epoch_is_retried():
    cluster = LogCluster()
    cluster.elect(1)
    cluster.append()
    cluster.elect(1, informed=[2])
    cluster.run()
    assert cluster.nodes[2].fetched[0].state is FetchState.DELAYED
    cluster.inform(1)
    cluster.append()
    cluster.run()
    assert_equal_logs(cluster)


def test_a_damaged_batch_is_not_appended(caplog):
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index)

    def damage(response):
        for topic in response.responses:
            for row in topic.partitions:
                if row.partition_index == 0 and row.records:
                    row.records = row.records[:-1] + b"?"

    cluster.changes.append(damage)
    for index in range(2):
        cluster.append(b"v", b"w", index=index)
    cluster.run()
    assert cluster.nodes[2].log().log_end_offset == 0
    assert_equal_logs(cluster, 1)
    assert "CORRUPT_MESSAGE" in caplog.text
    cluster.changes.clear()
    cluster.run()
    assert_equal_logs(cluster)


def test_a_response_of_the_last_epoch_is_ignored():
    """The fetch waits at the old leader epoch; its records arrive in the new one."""
    cluster = LogCluster()
    cluster.elect(1)
    cluster.run(1)
    cluster.append()
    cluster.changes.append(lambda response: cluster.elect(1, informed=[2]) if cluster.state[0].leader_epoch < 1 else 0)
    cluster.run(100)
    assert cluster.nodes[2].log().log_end_offset == 0
    cluster.inform(1)
    cluster.append()
    cluster.run()
    assert_equal_logs(cluster)


def test_offsets_that_arrived_while_a_partition_was_not_followed_are_sent_again():
    """The leader sends them once in a session. The partition is followed again before the session forgets it."""
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index)
        cluster.append(index=index)
    cluster.run()
    follower = cluster.nodes[2]

    def interrupt(response):
        rows = [row for topic in getattr(response, "responses", ()) for row in topic.partitions]
        if any(row.partition_index == 0 for row in rows):
            cluster.changes.clear()
            follower.fetchers.unfollow(follower.partitions[0])
            cluster.world.start(follow_again())

    async def follow_again():
        # The response arrives after this time, and the next request is made after the pause.
        await cluster.world.delay(1)
        await cluster.world.pause()
        follower.fetchers.follow(follower.partitions[0])

    follower.log().update_high_watermark(0)
    cluster.changes.append(interrupt)
    cluster.nodes[1].partitions[0].log.delete_records_before(1)
    cluster.run()
    assert cluster.changes == []
    assert_equal_logs(cluster)


def test_batches_of_a_later_epoch_are_not_appended():
    """The leader was elected again after it had received the request; its batches are fetched in the new epoch."""
    cluster = LogCluster()
    cluster.elect(1, epoch=3)
    cluster.append()
    cluster.run()
    cluster.nodes[1].partitions[0].apply(
        cluster.state[0]._replace(leader_epoch=4, partition_epoch=4), cluster.nodes[1].log()
    )
    cluster.append()
    newer = cluster.nodes[1].log().read(1, 1000, upper_offset=2, at_least_one=True).read()
    cluster.change_rows(0, error_code=0, records=newer)
    cluster.run()
    assert batches(cluster.nodes[2].log()) == [(0, 3, 0)]


def test_a_failed_disk_takes_only_its_partitions_offline():
    cluster = LogCluster(partitions=2)
    cluster.elect(1)
    cluster.run()
    follower = cluster.nodes[2]
    follower.fs.fail("write", error=errno.EIO, path_contains="t-0/0")
    cluster.append()
    cluster.run()
    assert follower.fetched[0].state is FetchState.PARKED
    assert follower.partitions[0].log is None
    follower.fetchers.follow(follower.partitions[0])
    assert follower.fetched == {}


def test_a_full_disk_delays_the_partition():
    cluster = LogCluster()
    cluster.elect(1)
    cluster.run()
    follower = cluster.nodes[2]
    follower.fs.is_full = True
    cluster.append()
    cluster.run()
    assert follower.fetched[0].state is FetchState.DELAYED
    follower.fs.heal()
    cluster.run()
    assert_equal_logs(cluster)


def test_a_defect_in_one_partition_does_not_stop_the_others(caplog):
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()

    def fail(*arguments, **keywords):
        raise ZeroDivisionError

    cluster.nodes[2].log().append_as_follower = fail
    for index in range(2):
        cluster.append(index=index)
    cluster.run()
    assert_equal_logs(cluster, 1)
    assert "please report it" in caplog.text


def test_offsets_out_of_range_while_the_leader_is_unavailable():
    cluster = LogCluster()
    cluster.elect(1)
    cluster.append()
    cluster.change_rows(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)

    def cut(response):
        cluster.cuts.add(frozenset((1, 2)))

    cluster.changes.append(lambda response: cut(response) if isinstance(response, ListOffsetsResponse) else None)
    cluster.run(500)
    assert any(isinstance(request, ListOffsetsRequest) for request in cluster.nodes[1].requests)
    assert cluster.nodes[2].fetched[0].state is FetchState.DELAYED
    cluster.changes.clear()
    cluster.cuts.clear()
    cluster.run()
    assert_equal_logs(cluster)


@pytest.mark.parametrize("where", ["truncate_to_leader_end", "log", "answer"])
def test_a_defect_in_an_offset_reset_is_retried(where, monkeypatch, caplog):
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index)
        cluster.append(index=index)
    cluster.run()
    follower = cluster.nodes[2]
    out_of_range = [ErrorCode.OFFSET_OUT_OF_RANGE]

    def fail(*arguments):
        raise ZeroDivisionError

    def refuse(response):
        for topic in getattr(response, "responses", []):
            for row in topic.partitions:
                row.error_code = out_of_range.pop() if out_of_range and row.partition_index == 0 else row.error_code
        if isinstance(response, ListOffsetsResponse):
            for topic in response.topics:
                topic.partitions[0].offset = 0
            if where != "answer":
                monkeypatch.setattr(follower.fetched[0].replica.__class__, where, fail)

    cluster.changes.append(refuse)
    if where == "answer":
        monkeypatch.setattr(OffsetReset, "_list_offsets", fail)
    cluster.append(index=0)
    cluster.run(500)
    assert follower.fetched[0].state is FetchState.DELAYED
    monkeypatch.undo()
    cluster.changes.clear()
    for index in range(2):
        cluster.append(index=index)
    cluster.run()
    for index in range(2):
        assert_equal_logs(cluster, index)
    assert "please report it" in caplog.text


def test_a_partition_whose_parameters_cannot_be_read_is_retried(monkeypatch, caplog):
    cluster = LogCluster(partitions=2)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()
    follower = cluster.nodes[2]

    def fail(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(follower.fetched[0].__class__, "make_row", fail)
    cluster.append(index=0)
    cluster.run(700)
    assert follower.fetched[0].state is FetchState.DELAYED
    monkeypatch.undo()
    cluster.append(index=1)
    cluster.run()
    for index in range(2):
        assert_equal_logs(cluster, index)
    assert "please report it" in caplog.text


def test_a_partition_whose_log_cannot_be_synced_is_not_fetched(monkeypatch, caplog):
    cluster = LogCluster(partitions=2, flush_messages=1)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()
    follower = cluster.nodes[2]

    def flush(log, done):
        done(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no descriptor"))

    monkeypatch.setattr(follower.logs, "flush", flush)
    cluster.append(index=0)
    cluster.run(700)
    assert follower.fetched[0].state is FetchState.DELAYED
    cluster.nodes[1].requests.clear()
    cluster.run(10_000)
    assert not [one for one in fetches(cluster.nodes[1]) if 0 in fetched_rows(one)]
    assert "please report it" not in caplog.text


def test_an_offset_that_the_leader_has_after_all_is_fetched_after_a_delay():
    cluster = LogCluster()
    cluster.elect(1)
    cluster.append()
    cluster.change_rows(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    cluster.run(10_000)
    asked = [request for request in cluster.nodes[1].requests if isinstance(request, ListOffsetsRequest)]
    assert 12 <= len(asked) <= 24, "two requests after each delay"
    cluster.changes.clear()
    cluster.run()
    assert_equal_logs(cluster)


def test_the_leaders_log_start_is_adopted_and_returned():
    cluster = LogCluster()
    cluster.elect(1)
    for _ in range(30):
        cluster.append()
    cluster.run()
    leader, follower = cluster.nodes[1].log(), cluster.nodes[2].log()
    leader.delete_records_before(25)
    cluster.run()
    assert follower.log_start_offset == 25
    assert fetched_rows([r for r in fetches(cluster.nodes[1]) if r.topics][-1])[0].log_start_offset == 25
    assert follower.segments[0].base_offset == 0
    follower.delete_old_segments(0)
    assert follower.segments[0].base_offset > 0


def test_many_small_batches_are_appended_in_steps():
    """Between the steps of one response other coroutines run."""
    cluster = LogCluster(internal_segment_bytes=1_000_000)
    cluster.elect(1, informed=[1])
    for _ in range(1000):
        cluster.append()
    seen = []

    async def watch():
        await cluster.world.delay(1)
        for _ in range(30):
            await cluster.world.pause()
            seen.append(cluster.nodes[2].log().log_end_offset)

    cluster.changes.append(lambda response: cluster.world.start(watch()) if not seen else None)
    cluster.inform(2)
    cluster.run(100)
    assert {64, 128, 192} <= set(seen)
    assert_equal_logs(cluster)


def test_a_partition_that_is_removed_between_steps():
    cluster = LogCluster(internal_segment_bytes=1_000_000)
    cluster.elect(1, informed=[1])
    for _ in range(1000):
        cluster.append()

    async def remove():
        cluster.changes.clear()
        follower = cluster.nodes[2]
        await cluster.world.delay(1)
        while follower.log().log_end_offset < 128:
            await cluster.world.pause()
        follower.fetchers.unfollow(follower.partitions[0])
        cluster.elect(2, informed=[2])
        cluster.append(b"new")

    cluster.changes.append(lambda response: cluster.world.start(remove()))
    cluster.inform(2)
    cluster.run(100)
    assert cluster.nodes[2].log().leader_epochs.entries == [(0, 0), (1, 128)]
    assert cluster.nodes[2].log().log_end_offset == 129


def test_partitions_are_spread_over_fetchers():
    cluster = LogCluster(partitions=8)
    cluster.nodes[2].fetchers.resize(3)
    for index in range(8):
        cluster.elect(1, index=index)
        cluster.append(index=index)
    cluster.run()
    fetchers = cluster.nodes[2].fetchers.fetchers
    assert sorted(fetchers) == [(1, 0), (1, 1), (1, 2)]
    assert sorted(len(fetcher.partitions) for fetcher in fetchers.values()) == [2, 3, 3]
    cluster.nodes[2].fetchers.resize(1)
    assert list(cluster.nodes[2].fetchers.fetchers) == [(1, 0)]
    for index in range(8):
        cluster.append(index=index)
    cluster.run()
    for index in range(8):
        assert_equal_logs(cluster, index)


@pytest.mark.parametrize("fetchers", [4, 7])
def test_the_number_of_fetchers_changes_in_the_middle_of_an_append(fetchers, caplog):
    """The fetcher that appends keeps the partition, or loses it to another one, which fetches from the log's end."""
    cluster = LogCluster(internal_segment_bytes=1_000_000)
    cluster.elect(1, informed=[1])
    for _ in range(1000):
        cluster.append()
    cluster.inform(2)
    follower = cluster.nodes[2]
    while follower.log().log_end_offset < 128:
        cluster.world.run_once()
    follower.fetchers.resize(fetchers)
    before = follower.log().log_end_offset
    cluster.run(1)
    assert follower.log().log_end_offset == before, "the last fetcher does not go on"
    cluster.run(100)
    assert_equal_logs(cluster)
    assert caplog.text == ""


def test_a_fetcher_without_partitions_ends():
    cluster = LogCluster(3)
    cluster.elect(1)
    cluster.run()
    cluster.elect(2)
    cluster.run()
    assert list(cluster.nodes[3].fetchers.fetchers) == [(2, 0)]
    assert list(cluster.nodes[2].fetchers.fetchers) == []
    count = len(cluster.nodes[1].requests)
    cluster.run(20_000)
    assert len(cluster.nodes[1].requests) == count
    for number in (2, 3):
        cluster.nodes[number].fetchers.close()
    cluster.elect(1)
    assert list(cluster.nodes[3].fetchers.fetchers) == []
    cluster.run()
    assert cluster.world.timers == []


def test_watchers_of_a_follower_are_woken_with_its_high_watermark():
    """Consumers may read from a follower (KIP-392)."""
    cluster = LogCluster()
    cluster.elect(1)
    cluster.run()
    partition = cluster.nodes[2].partitions[0]

    class Watcher:
        woken = 0

        def wake(self):
            self.woken = partition.log.high_watermark

    watcher = Watcher()
    partition.watchers[watcher] = None
    cluster.append()
    cluster.run()
    assert watcher.woken == 1


@pytest.mark.parametrize("properties", [{"flush_messages": 1}, {"flush_before_acks": True}])
def test_records_are_durable_before_the_leader_counts_them_as_replicated(properties):
    cluster = LogCluster(**properties)
    cluster.elect(1)
    for _ in range(10):
        cluster.append()
        cluster.run(7)
    replicated = cluster.nodes[1].progress[0, 2]
    assert replicated > 5
    cluster.nodes[2].crash()
    cluster.restart(2)
    cluster.elect(2)
    assert cluster.nodes[2].log().log_end_offset >= replicated


def hold_syncs(monkeypatch, node):
    """Collect the syncs of a node's logs; each ends when its function is called with an error or None."""
    syncs = []

    def flush(log, done):
        def end(error):
            if error is None:
                log.flush(0)
            done(error)

        syncs.append(end)

    monkeypatch.setattr(node.logs, "flush", flush)
    return syncs


def test_the_next_fetch_waits_for_a_sync(monkeypatch):
    cluster = LogCluster(partitions=2, flush_messages=1)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()
    syncs = hold_syncs(monkeypatch, cluster.nodes[2])
    for index in range(2):
        cluster.append(index=index)
    cluster.run(200)
    assert len(syncs) == 2
    count = len(cluster.nodes[1].requests)
    cluster.run()
    assert len(cluster.nodes[1].requests) == count
    syncs[1](None)
    syncs[0](KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no descriptor"))
    cluster.run(100)
    assert len(cluster.nodes[1].requests) > count
    assert [cluster.nodes[2].fetched[index].state for index in range(2)] == [FetchState.DELAYED, FetchState.FETCHING]


def test_the_first_fetch_of_an_epoch_waits_for_the_sync_of_the_last_one(monkeypatch):
    """The new leader would acknowledge records that a power loss removes from this broker."""
    cluster = LogCluster(3, flush_messages=1)
    cluster.elect(1)
    cluster.run()
    syncs = hold_syncs(monkeypatch, cluster.nodes[2])
    cluster.append()
    cluster.run(200)
    assert len(syncs) == 1
    count = len(cluster.nodes[3].requests)
    cluster.elect(3)
    cluster.run(400)
    assert not [one for one in cluster.nodes[3].requests[count:] if one.replica_state.replica_id == 2]
    for sync in syncs:
        sync(None)
    cluster.run(400)
    assert [one for one in cluster.nodes[3].requests[count:] if one.replica_state.replica_id == 2]


class Throttle:
    """A throttle that the test switches."""

    def __init__(self):
        self.is_on = False
        self.counted = {}

    def is_exceeded(self, topic, index):
        return self.is_on and index == 0

    def record(self, topic, index, size_bytes):
        self.counted[index] = self.counted.get(index, 0) + size_bytes


def test_a_throttled_partition_waits_unless_it_is_in_sync():
    """KIP-73: partitions in sync are not throttled, so that they do not leave the ISR."""
    throttle = Throttle()
    cluster = LogCluster(partitions=2, throttle=throttle)
    for index in range(2):
        cluster.elect(1, index=index)
    cluster.run()
    throttle.is_on = True
    for index in range(2):
        cluster.append(index=index)
    cluster.run()
    assert_equal_logs(cluster)
    assert throttle.counted == {index: cluster.nodes[1].log(index).size_bytes for index in range(2)}
    for index in range(2):
        cluster.elect(1, index=index)
        cluster.append(index=index)
    cluster.run()
    assert_equal_logs(cluster, 1)
    assert cluster.nodes[2].log().log_end_offset == 1
    throttle.is_on = False
    cluster.run()
    assert_equal_logs(cluster)
