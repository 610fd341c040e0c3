"""Bad input: the same requests to Odradek and to Apache Kafka, and the same responses."""

import itertools
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceResponse

from compat_tests import limits
from compat_tests.bad_frames import (
    CONTROL,
    LOG_APPEND_TIME,
    Connection,
    batch,
    legacy_message,
    plain_frame,
    produce,
    produce_request,
    record,
    sized,
    varint,
)
from compat_tests.plain_requests import (
    ask_for_coordinator,
    commit,
    end_offset,
    fetch,
    heartbeat,
    join,
    leave,
    list_offset,
    metadata,
    sync,
    wait_for_topics,
)

pytestmark = pytest.mark.side_by_side

HOUR_MS = 3_600_000
NO_OFFSET = -1


@pytest.fixture
def connection(broker: Any) -> Iterator[Connection]:
    with Connection(broker.port) as made:
        yield made


@pytest.fixture(scope="module")
def topics(broker: Any) -> dict[str, str]:
    """Create a topic for each set of properties that the cases need; return them by a short name."""
    from compat_tests.clients import load

    wanted = {
        "plain": {},
        "small": {"max.message.bytes": "500"},
        "bounded": {
            "message.timestamp.before.max.ms": str(HOUR_MS),
            "message.timestamp.after.max.ms": str(HOUR_MS),
        },
        "stamped": {"message.timestamp.type": "LogAppendTime"},
        "compacted": {"cleanup.policy": "compact"},
        "zstd": {"compression.type": "zstd"},
    }
    names = {kind: f"bad-input-{kind}" for kind in wanted}
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        for kind, configs in wanted.items():
            admin.create_topic(names[kind], configs=configs)
    wait_for_topics(broker, names.values())
    return names


def an_hour_ago(hours: float = 2) -> int:
    return int(time.time() * 1000 - hours * HOUR_MS)


GOOD = batch()
A_RECORD = record(b"key", b"value")
MANY = [(b"k%d" % n, b"v") for n in range(3)]

# (error, topic, the records field, expected error code)
REFUSED: list[tuple[str, str, Any, int | tuple[int, int]]] = [
    ("bad CRC", "plain", lambda: batch(crc=1), 2),
    ("a byte of the payload flipped", "plain", lambda: GOOD[:-1] + bytes([GOOD[-1] ^ 1]), 2),
    ("magic 0", "plain", lambda: legacy_message(0), 87),
    ("magic 1", "plain", lambda: legacy_message(1), 87),
    ("magic 3", "plain", lambda: batch(magic=3), 2),
    ("magic -1", "plain", lambda: batch(magic=-1), 2),
    ("no batch", "plain", lambda: b"", 87),
    ("a batch cut off", "plain", lambda: GOOD[:-10], 87),
    ("a header cut off", "plain", lambda: GOOD[:40], 87),
    ("two batches", "plain", lambda: GOOD + GOOD, 87),
    ("length below the least", "plain", lambda: batch(length=10), 2),
    ("negative length", "plain", lambda: batch(length=-1), 2),
    ("length too small for the header", "plain", lambda: batch(length=40), 2),
    ("base offset not 0", "plain", lambda: batch(base_offset=7), 87),
    ("last offset delta too large", "plain", lambda: batch(MANY, last_offset_delta=5), 87),
    ("last offset delta too small", "plain", lambda: batch(MANY, last_offset_delta=1), 87),
    ("record count too large", "plain", lambda: batch(MANY, record_count=9, last_offset_delta=8), 87),
    ("record count too small", "plain", lambda: batch(MANY, record_count=2, last_offset_delta=1), 87),
    ("record count 0", "plain", lambda: batch((), record_count=0, last_offset_delta=-1), 87),
    ("record count -1", "plain", lambda: batch(record_count=-1), 87),
    ("control batch", "plain", lambda: batch(attributes=CONTROL), 87),
    ("producer id with sequence -1", "plain", lambda: batch(producer_id=5, producer_epoch=0), 87),
    (
        "producer id with sequence -2",
        "plain",
        lambda: batch(producer_id=5, producer_epoch=0, base_sequence=-2),
        87,
    ),
    ("too large", "small", lambda: batch([(b"k", b"x" * 600)]), 10),
    ("too old", "bounded", lambda: batch(timestamp_ms=an_hour_ago(2)), 32),
    ("too far ahead", "bounded", lambda: batch(timestamp_ms=an_hour_ago(-2)), 32),
    ("LogAppendTime set by the client", "stamped", lambda: batch(attributes=LOG_APPEND_TIME), 32),
    ("null key where keys are needed", "compacted", lambda: batch([(None, b"v")]), 87),
    ("record longer than the batch", "plain", lambda: batch(payload=varint(5000) + A_RECORD[1:]), 87),
    ("record of negative length", "plain", lambda: batch(payload=varint(-5) + A_RECORD[1:]), 87),
    ("bytes after the records", "plain", lambda: batch(payload=A_RECORD + b"left over"), 87),
    ("no records at all", "plain", lambda: batch(payload=b""), 87),
    # Apache Kafka returns the unknown error -1, Odradek a specific one.
    ("varint without an end", "plain", lambda: batch(payload=b"\xff" * 12), (87, -1)),
    (
        "key longer than the record",
        "plain",
        lambda: batch(payload=bad_body(varint(900) + b"k" + sized(b"v"))),
        87,
    ),
    ("header count negative", "plain", lambda: batch(payload=record(b"k", b"v", headers=varint(-1))), 87),
    (
        "header key null",
        "plain",
        lambda: batch(payload=record(b"k", b"v", headers=varint(1) + sized(None) + sized(b""))),
        87,
    ),
    (
        "header count beyond the record",
        "plain",
        lambda: batch(payload=record(b"k", b"v", headers=varint(9))),
        87,
    ),
    ("gzip of nonsense", "plain", lambda: batch(payload=b"this is not gzip", attributes=1), -1),
    ("snappy of nonsense", "plain", lambda: batch(payload=b"\xff\xfe\xfd is not snappy", attributes=2), -1),
    ("lz4 of nonsense", "plain", lambda: batch(payload=b"this is not an lz4 frame", attributes=3), -1),
    ("zstd of nonsense", "plain", lambda: batch(payload=b"this is not zstandard", attributes=4), -1),
    ("codec 5", "plain", lambda: batch(attributes=5), -1),
    ("codec 7", "plain", lambda: batch(attributes=7), -1),
]


def bad_body(after_offset_delta: bytes) -> bytes:
    body = b"\0\0\0" + after_offset_delta + b"\0"
    return varint(len(body)) + body


@pytest.mark.parametrize(("topic", "records", "code"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_bad_batch_is_refused_and_nothing_of_it_is_written(connection, topics, topic, records, code):
    name = topics[topic]
    before = end_offset(connection, name)
    answered, base_offset = produce(connection, name, records())
    assert answered in (code if isinstance(code, tuple) else (code,))
    assert base_offset == NO_OFFSET
    assert end_offset(connection, name) == before
    # The connection and the partition remain usable.
    good = batch([(b"k", b"v")])
    assert produce(connection, name, good) == (0, before)


@pytest.mark.parametrize(
    ("what", "records"),
    [
        ("LogAppendTime bit on a CreateTime topic", lambda: batch(attributes=LOG_APPEND_TIME)),
        ("unused attribute bits", lambda: batch(attributes=0x4000)),
        ("leader epoch set by the client", lambda: batch(leader_epoch=77)),
        ("an incomplete batch after a whole one", lambda: GOOD + GOOD[:30]),
        ("gzip", lambda: batch(compress=1)),
        ("timestamp -1", lambda: batch(timestamp_ms=-1)),
        ("offset deltas that do not count up", lambda: batch(MANY, payload=A_RECORD * 3)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unusual_batch_that_apache_kafka_accepts_is_accepted(connection, topics, what, records):
    before = end_offset(connection, topics["plain"])
    assert produce(connection, topics["plain"], records()) == (0, before)


def test_a_batch_that_is_too_large_is_refused_before_other_checks(connection, topics):
    """Apache Kafka checks the size before the CRC."""
    assert produce(connection, topics["small"], batch([(b"k", b"x" * 600)], crc=1)) == (10, NO_OFFSET)


@pytest.mark.parametrize("version", [3, 5, 6])
def test_zstd_before_version_7(connection, topics, version):
    assert produce(connection, topics["plain"], batch(attributes=4), version=version)[0] == 76


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_unknown_acks(connection, topics, acks):
    assert produce(connection, topics["plain"], GOOD, acks=acks) == (21, NO_OFFSET)


def test_missing_topics_and_partitions(connection, topics):
    assert produce(connection, "bad-input-missing", GOOD)[0] == 3
    assert produce(connection, topics["plain"], GOOD, partition=9)[0] == 3
    assert produce(connection, topics["plain"], GOOD, partition=-1)[0] == 3
    assert produce(connection, uuid.uuid4(), GOOD, version=13)[0] == 100


def test_produce_by_topic_id(connection, topics):
    _, topic_id = metadata(connection, topics["plain"])
    assert topic_id is not None
    assert produce(connection, topic_id, GOOD, version=13)[0] == 0


def test_internal_topics_accept_no_records_from_clients(connection, broker):
    ask_for_coordinator(connection)
    assert produce(connection, "__consumer_offsets", GOOD)[0] == 17


def test_an_invalid_partition_does_not_affect_another_one(connection, topics):
    """Errors are per partition: of a request with a valid and an invalid one the former is executed."""
    request = produce_request(topics["plain"], GOOD)
    request.topic_data += produce_request(topics["bounded"], batch(crc=1)).topic_data
    answer = connection.ask(request, ProduceResponse, 9)
    response = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
    assert response == {topics["plain"]: 0, topics["bounded"]: 2}


# Idempotent producers. Every case uses a separate producer.


@pytest.fixture
def producer(connection: Connection) -> int:
    """A producer id with epoch 0."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    give_up_at = time.monotonic() + limits.CONDITION_S
    while True:
        answer = connection.ask(request, InitProducerIdResponse, 4)
        if answer.error_code == 0:
            assert answer.producer_epoch == 0
            return answer.producer_id
        assert time.monotonic() < give_up_at, answer
        time.sleep(0.1)


def numbered(producer: int, sequence: int, count: int = 1, epoch: int = 0) -> bytes:
    records = [(b"k", b"v")] * count
    return batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def test_a_repeated_batch_gets_its_first_offset(connection, topics, producer):
    name = topics["plain"]
    offsets = [produce(connection, name, numbered(producer, n * 2, 2)) for n in range(5)]
    end = end_offset(connection, name)
    assert [produce(connection, name, numbered(producer, n * 2, 2)) for n in range(5)] == offsets
    assert end_offset(connection, name) == end
    # Apache Kafka keeps five batches, Odradek ten: the first is no longer one of them.
    assert [produce(connection, name, numbered(producer, n))[0] for n in range(10, 16)] == [0] * 6
    assert produce(connection, name, numbered(producer, 0, 2)) == (45, NO_OFFSET)


def test_sequences_that_do_not_follow(connection, topics, producer):
    name = topics["plain"]
    assert produce(connection, name, numbered(producer, 0, 3))[0] == 0
    assert produce(connection, name, numbered(producer, 5)) == (45, NO_OFFSET)
    assert produce(connection, name, numbered(producer, 2, 2)) == (45, NO_OFFSET)
    assert produce(connection, name, numbered(producer, 0, 2)) == (45, NO_OFFSET)
    assert produce(connection, name, numbered(producer, 3))[0] == 0


def test_an_unknown_producer_may_start_anywhere(connection, topics, producer):
    assert produce(connection, topics["plain"], numbered(producer, 1000))[0] == 0


def test_sequences_wrap_around(connection, topics, producer):
    name = topics["plain"]
    assert produce(connection, name, numbered(producer, 2**31 - 2, 3))[0] == 0
    assert produce(connection, name, numbered(producer, 1))[0] == 0


def test_producer_epochs(connection, topics, producer):
    name = topics["plain"]
    assert produce(connection, name, numbered(producer, 0, epoch=3))[0] == 0
    assert produce(connection, name, numbered(producer, 1, epoch=2)) == (47, NO_OFFSET)
    assert produce(connection, name, numbered(producer, 1, epoch=4)) == (45, NO_OFFSET)
    assert produce(connection, name, numbered(producer, 0, epoch=4))[0] == 0
    assert produce(connection, name, numbered(producer, 1, epoch=3)) == (47, NO_OFFSET)


def test_producer_state_survives_restarts(start_broker, unique):
    """Duplicates are detected after a clean stop, and after a crash."""
    from compat_tests.clients import load

    broker = start_broker()
    with load("kafka_python").Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(unique)
    wait_for_topics(broker, [unique])
    with Connection(broker.port) as connection:
        assert produce(connection, unique, numbered(4000, 0, 2)) == (0, 0)
    for number, clean in enumerate((True, False), start=1):
        broker.restart(clean=clean)
        with Connection(broker.port) as connection:
            assert produce(connection, unique, numbered(4000, (number - 1) * 2, 2)) == (0, (number - 1) * 2)
            assert produce(connection, unique, numbered(4000, number * 2 + 4, 2))[0] == 45
            assert produce(connection, unique, numbered(4000, number * 2, 2)) == (0, number * 2)


def test_init_producer_id_errors(connection):
    def init(**fields: Any) -> int:
        request = InitProducerIdRequest(**{"transactional_id": None, "transaction_timeout_ms": 60_000, **fields})
        return connection.ask(request, InitProducerIdResponse, 4).error_code

    assert init(transactional_id="") == 42
    assert init(producer_id=5, producer_epoch=-1) == 42
    assert init(producer_id=-1, producer_epoch=5) == 42


# Fetch and offsets.


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_fetch_errors(connection, topics, version):
    name = topics["plain"]
    produce(connection, name, GOOD)
    end = end_offset(connection, name)
    assert fetch(connection, name, 0, version=version) == (0, 0, end)
    assert fetch(connection, name, end, version=version) == (0, 0, end)
    assert fetch(connection, name, end + 1, version=version) == (0, 1, -1)
    assert fetch(connection, name, -1, version=version) == (0, 1, -1)
    assert fetch(connection, "bad-input-missing", version=version) == (0, 3, -1)
    assert fetch(connection, name, partition=9, version=version) == (0, 3, -1)


def test_fetch_by_topic_id(connection, topics):
    _, topic_id = metadata(connection, topics["plain"])
    assert topic_id is not None
    end = end_offset(connection, topics["plain"])
    assert fetch(connection, topic_id, end, version=16) == (0, 0, end)
    assert fetch(connection, uuid.uuid4(), 0, version=16)[:2] == (0, 100)


def test_fetch_session_errors(connection, topics):
    name = topics["plain"]
    assert fetch(connection, name, session=(12345, 1))[0] == 70
    assert fetch(connection, name, session=(12345, 0))[0] == 0
    session = open_session(connection, name)
    assert fetch(connection, name, session=(session, 7))[0] == 71
    assert fetch(connection, name, session=(session, 1))[0] == 0
    assert fetch(connection, name, session=(session, 1))[0] == 71


def open_session(connection: Connection, topic: str) -> int:
    of_topic = FetchRequest.FetchTopic
    asked = of_topic.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=0,
        topics=[of_topic(topic=topic, partitions=[asked])],
        forgotten_topics_data=[],
        rack_id="",
    )
    answer = connection.ask(request, FetchResponse, 12)
    assert answer.session_id != 0
    return answer.session_id


def test_leader_epochs(connection, topics):
    """A newer epoch than the leader's is unknown; without an epoch there is no check."""
    name = topics["plain"]
    assert fetch(connection, name, leader_epoch=0)[:2] == (0, 0)
    assert fetch(connection, name, leader_epoch=1000)[:2] == (0, 75)
    assert list_offset(connection, name, -1, leader_epoch=1000)[0] == 75
    assert list_offset(connection, name, -1, leader_epoch=0)[0] == 0

    def end_of_epoch(epoch: int, current: int = -1) -> tuple[int, int, int]:
        of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        asked = of_topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[of_topic(topic=name, partitions=[asked])])
        (response,) = connection.ask(request, OffsetForLeaderEpochResponse, 4).topics[0].partitions
        return response.error_code, response.leader_epoch, response.end_offset

    assert end_of_epoch(0) == (0, 0, end_offset(connection, name))
    assert end_of_epoch(1000) == (0, -1, -1)
    assert end_of_epoch(0, current=1000)[0] == 75


def test_list_offsets_errors(connection, topics):
    name = topics["plain"]
    assert list_offset(connection, name, -3, version=7)[0] == 0
    assert list_offset(connection, name, -9, version=7)[0] == 35
    assert list_offset(connection, name, -1, partition=9)[0] == 3
    assert list_offset(connection, "bad-input-missing", -1)[0] == 3
    assert list_offset(connection, name, 2**62) == (0, -1)


# Groups.

_groups = (f"bad-input-group-{n}" for n in itertools.count())


@pytest.fixture
def group(connection: Connection, broker: Any) -> str:
    ask_for_coordinator(connection)
    return f"{next(_groups)}"


def test_invalid_joins(connection, group):
    code, member, _ = join(connection, group)
    assert (code, bool(member)) == (79, True)
    assert join(connection, group, "nobody")[0] == 25
    assert join(connection, group, member, session_timeout_ms=1)[0] == 26
    assert join(connection, group, member, session_timeout_ms=10**9)[0] == 26
    assert join(connection, group, member, protocols=())[0] == 23
    assert join(connection, group, member, protocol_type="")[0] == 23
    assert join(connection, "")[0] == 24
    assert join(connection, group, member)[0] == 0


def test_a_member_with_another_protocol_type(connection, group):
    _, first, _ = join(connection, group)
    assert join(connection, group, first)[0] == 0
    assert join(connection, group, protocol_type="other")[0] in (23, 79)
    assert join(connection, group, protocols=("other",))[0] in (23, 79)
    assert join(connection, group, protocol_type="other", version=3)[0] == 23
    assert join(connection, group, protocols=("other",), version=3)[0] == 23


def test_unknown_members_and_generations(connection, group, topics):
    name = topics["plain"]
    assert heartbeat(connection, group, "nobody", 1) == 25
    assert sync(connection, group, "nobody", 1) == 25
    assert leave(connection, group, "nobody") == (0, 25)
    assert commit(connection, group, "nobody", 1, name) in (22, 25)
    _, member, _ = join(connection, group)
    code, _, generation = join(connection, group, member)
    assert code == 0
    assert heartbeat(connection, group, member, generation) == 0
    assert commit(connection, group, member, generation, name) == 27
    assert sync(connection, group, member, generation + 1) == 22
    assert sync(connection, group, member, generation) == 0
    assert heartbeat(connection, group, member, generation) == 0
    assert heartbeat(connection, group, member, generation - 1) == 22
    assert heartbeat(connection, group, "nobody", generation) == 25
    assert commit(connection, group, member, generation, name) == 0
    assert commit(connection, group, member, generation - 1, name) == 22
    assert commit(connection, group, "nobody", generation, name) == 25
    assert commit(connection, group, "", -1, name) == 25
    assert leave(connection, group, member) == (0, 0)
    assert heartbeat(connection, group, member, generation) == 25


def test_refused_commits(connection, group, topics):
    name = topics["plain"]
    assert commit(connection, group, "", -1, name, "x" * 4096) == 0
    assert commit(connection, group, "", -1, name, "x" * 4097) == 12
    assert commit(connection, group, "", -1, "bad-input-missing") == 3
    assert commit(connection, group, "", -1, name, partition=9) == 3
    # The empty name is a valid group, for old simple consumers.
    assert commit(connection, "", "", -1, name) == 0


# Frames.


def alive(connection: Connection) -> bool:
    return connection.ask(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


def announced(length: int, content: bytes = b"") -> bytes:
    return struct.pack(">i", length) + content


CLOSES: dict[str, bytes] = {
    "oversized": announced(2**31 - 1, b"x" * 100),
    "just over the limit": announced(104_857_601),
    "negative length": announced(-1),
    "smallest length": announced(-(2**31)),
    "empty frame": announced(0),
    "garbage": announced(50, bytes(range(200, 250))),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(300),
    "unknown key": plain_frame(9999, 0),
    "negative key": plain_frame(-5, 0),
    "a key for controllers only": plain_frame(52, 0),
    "unsupported version": plain_frame(3, 99, b"\0\0\0\0"),
    "version that is no longer served": plain_frame(1, 3, bytes(40)),
    "negative version": plain_frame(3, -1, b"\0\0\0\0"),
    "body cut off": plain_frame(3, 1, b"\0\0\0\x02\0\x05ab"),
    "no body": plain_frame(3, 1),
    "array of two thousand million": plain_frame(3, 1, b"\x7f\xff\xff\xff"),
    "string of negative length": plain_frame(3, 1, b"\0\0\0\x01\xff\x00"),
    "header cut off": announced(6, b"\0\x03\0\x01\0\0"),
    "client id longer than the frame": announced(14, struct.pack(">hhih", 3, 1, 1, 3000) + b"abcd"),
}


@pytest.mark.parametrize("frame", CLOSES.values(), ids=CLOSES.keys())
def test_a_broken_frame_closes_its_connection_and_no_other(broker, frame):
    with Connection(broker.port) as bad, Connection(broker.port) as good:
        assert alive(bad)
        assert alive(good)
        bad.send(frame)
        assert bad.is_closed()
        assert alive(good)
    with Connection(broker.port) as new:
        assert alive(new)


def test_requests_before_a_broken_frame_get_responses(connection):
    """Responses arrive in order, also if the next frame ends the connection."""
    connection.send(connection.frame(ApiVersionsRequest(), 0) + plain_frame(9999, 0))
    assert ApiVersionsResponse.decode(connection.receive(), version=0, header=True).error_code == 0
    assert connection.is_closed()


def test_api_versions_of_an_unknown_version(connection):
    """The response has version 0, the error, and the range of ApiVersions itself; the connection remains open."""
    connection.send(plain_frame(18, 99, b"\1\1\0"))
    answer = ApiVersionsResponse.decode(connection.receive(), version=0, header=True)
    assert answer.error_code == 35
    assert [entry.api_key for entry in answer.api_keys] == [18]
    assert alive(connection)


def test_api_versions_with_a_client_name_that_is_not_allowed(connection):
    request = ApiVersionsRequest(client_software_name="not allowed!", client_software_version="1")
    connection.send(connection.frame(request, 3))
    assert struct.unpack(">h", connection.receive()[4:6]) == (42,)
    assert alive(connection)


def test_a_frame_in_single_bytes(connection):
    for byte in connection.frame(ApiVersionsRequest(), 0):
        connection.send(bytes([byte]))
    assert ApiVersionsResponse.decode(connection.receive(), version=0, header=True).error_code == 0


def test_many_requests_at_once_are_answered_in_order(connection, topics):
    frames = []
    for number in range(100):
        if number % 2:
            frames.append(connection.frame(ApiVersionsRequest(), 0))
        else:
            frames.append(connection.frame(produce_request(topics["plain"], batch()), 9))
    connection.send(b"".join(frames))
    correlations = [struct.unpack(">i", connection.receive()[:4])[0] for _ in frames]
    assert correlations == list(range(1, 101))


def test_acks_0_has_no_answer_and_its_failure_closes(connection, topics):
    name = topics["plain"]
    before = end_offset(connection, name)
    connection.send(connection.frame(produce_request(name, GOOD, acks=0), 9))
    assert alive(connection)
    assert end_offset(connection, name) == before + 1
    connection.send(connection.frame(produce_request(name, batch(crc=1), acks=0), 9))
    assert connection.is_closed()
