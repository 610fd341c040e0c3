"""Mutated requests against a broker process: it answers, or closes that one connection with one logged line.

The requests name topics and groups that exist, so that mutants pass the handlers' first checks.
`ODRADEK_FUZZ_REQUESTS` and `ODRADEK_FUZZ_SEED` set the number of requests and the seed; failures show the bytes sent.
"""

import asyncio
import os
import random
import re
import struct
import time
from collections import Counter

import pytest

from odradek.protocol.codec import MALFORMED
from odradek.protocol.framing import SIZE_BYTES
from odradek.protocol.headers import API_VERSIONS_KEY, read_request_prefix, split_api_code
from odradek.protocol.messages import API_NAMES, request_class
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.records import build_batch
from odradek.protocol.tests.test_fuzz import frame_of, mutate, read_request
from odradek.protocol.tests.values import AS_USUAL, RandomSource, make
from odradek.protocol.types import RECORDS, DecodeError
from odradek.server.apis import served_apis
from odradek.server.tests.wire import TIMEOUT_S, Wire, request_frame, until
from odradek.testing import OdradekBroker

EMBEDDED = served_apis(in_cluster=False)
REQUESTS = int(os.environ.get("ODRADEK_FUZZ_REQUESTS", "5000"))
SEED = int(os.environ.get("ODRADEK_FUZZ_SEED", "21"))
AT_ONCE = 32
FRAMES_OF_AN_API = 24
"""At least, so that mutants of an API with one version are drawn, and some are answered."""

MAY_CLOSE = ("Produce", "DescribeAcls", "CreateAcls", "DeleteAcls")
"""APIs that may close the connection for a valid frame: Produce with acks=0 has no response for a failure, and a code 0
in a request about ACLs is malformed."""

PARKED_AFTER_S = 10.0
"""Longer than a busy machine delays a response: the broker may close a connection after the test has given it up, and
the log would then have one line more than the test has seen. No request of the default seed waits so long."""
GROWTH_LIMIT_KB = 64 * 1024
SHORT_MS = 20

TOPICS = ("one", "two")
GROUPS = ("readers", "writers")
PROPERTIES = {"group.min.session.timeout.ms": "100", "num.partitions": "2", "log.dirs.failure.timeout.ms": "1000"}


@pytest.fixture
def broker():
    with OdradekBroker(PROPERTIES) as broker:
        yield broker


def corpus(rng, topic_ids):
    """Valid frames of every API and version, which mostly name topics and groups that exist."""

    def likely(cls, item, source):
        name = item.name
        if rng.random() < 0.1:
            return AS_USUAL
        if item.wire is RECORDS:
            return build_batch([(int(time.time() * 1000), b"k", b"v", ((b"h".decode(), b"1"),))] * rng.randint(1, 3))
        if name == "topic_id":
            return rng.choice(topic_ids)
        if name in ("topic", "topic_name", "name") or (name == "resource_name" and rng.random() < 0.7):
            return rng.choice(TOPICS)
        if name in ("group_id", "group", "key"):
            return rng.choice(GROUPS)
        if name in ("partition", "partition_index", "index"):
            return rng.randint(0, 2)
        if name == "resource_type":
            return rng.choice((2, 2, 4, 8, 16, 32))
        if name in ("operation", "permission_type", "resource_pattern_type") or name.endswith("type_filter"):
            return rng.choice((1, 2, 3, 4))
        if name.endswith(("timeout_ms", "wait_ms")):
            return SHORT_MS if "wait" in name else 500
        if name in ("partition_max_bytes", "max_bytes"):
            return 1 << 20
        if name == "count":
            return rng.randint(-1, 4)
        return AS_USUAL

    frames = []
    for api in EMBEDDED.values():
        cls = request_class(api.key)
        versions = range(api.first_version, api.last_version + 1)
        for version in versions:
            for _ in range(max(3, FRAMES_OF_AN_API // len(versions))):
                message = make(cls, version, RandomSource(rng), likely)
                frames.append(frame_of(message, version, rng.choice((b"fuzz", b"", None))))
    return frames


def one_frame(stream):
    """Return the stream up to the end of its first frame, so that at most one response is expected."""
    if len(stream) < SIZE_BYTES:
        return stream
    (size,) = struct.unpack_from(">i", stream)
    return stream[: SIZE_BYTES + size] if size >= 0 else stream


def expectation(stream):
    """Return the broker's required reaction (`wait` for more bytes, `close`, `answer`, `either`) and the API's name."""
    if len(stream) < SIZE_BYTES:
        return "wait", "none"
    (size,) = struct.unpack_from(">i", stream)
    if size < 0 or size > 100 << 20:
        return "close", "none"
    if len(stream) < SIZE_BYTES + size:
        return "wait", "none"
    try:
        key, version = split_api_code(read_request_prefix(stream, SIZE_BYTES)[0])
    except MALFORMED:
        return "close", "none"
    api = EMBEDDED.get(key)
    if api is None:
        return "close", "none"
    if not api.first_version <= version <= api.last_version:
        # ApiVersions of an unknown version is answered; bytes after the header are ignored.
        return ("either" if key == API_VERSIONS_KEY else "close"), api.name
    try:
        read_request(stream)
    except DecodeError as error:
        # Bytes after a request are no error for a broker.
        return ("answer" if "left over" in str(error) else "close"), api.name
    return "answer", api.name


class Fuzz:
    """A client that sends each stream over its own connection, and counts the reactions."""

    def __init__(self, port):
        self.port = port
        self.closed = 0
        self.wrong = []
        self.outcomes = Counter()
        self.answered = Counter()

    async def one(self, stream):
        expected, api_name = expectation(stream)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(stream)
            outcome = await self.outcome(reader, expected)
        finally:
            writer.transport.abort()
        self.outcomes[outcome] += 1
        if outcome == "answer":
            self.answered[api_name] += 1
        if outcome == "close":
            self.closed += 1
        if expected in ("answer", "close") and outcome not in (expected, "silence") and api_name not in MAY_CLOSE:
            self.wrong.append((expected, outcome, stream.hex()))
        if expected == "close" and outcome == "silence":
            self.wrong.append((expected, outcome, stream.hex()))

    async def outcome(self, reader, expected):
        if expected == "wait":
            return "incomplete"
        try:
            async with asyncio.timeout(PARKED_AFTER_S if expected == "answer" else TIMEOUT_S):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
                return "answer"
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return "close"
        except TimeoutError:
            return "silence"

    async def all(self, streams):
        waiting = iter(streams)

        async def worker():
            for stream in waiting:
                await self.one(stream)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


def resident_kb(pid):
    with open(f"/proc/{pid}/status") as status:
        size = re.search(r"VmRSS:\s+(\d+)", status.read())
    assert size is not None
    return int(size[1])


def refusals(broker):
    return broker.log_text().count("closing connection ")


def topic_ids(wire):
    return [wire.create_topic(name, partitions=2).topic_id for name in TOPICS]


def test_the_broker_survives_mutated_requests(broker):
    rng = random.Random(SEED)
    with Wire(broker.port) as bystander:
        frames = corpus(rng, topic_ids(bystander))
        bystander.create_topic("untouched")
        bystander.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["readers"]), 4)
        # After this all handlers are loaded and all codecs compiled: their memory does not count.
        asyncio.run(Fuzz(broker.port).all(frames))
        before_kb, before_lines, refused = resident_kb(broker.pid), len(broker.log_text()), refusals(broker)

        fuzz = Fuzz(broker.port)
        asyncio.run(fuzz.all(one_frame(mutate(rng.choice(frames), frames, rng)) for _ in range(REQUESTS)))

        assert bystander.metadata("untouched").topics[0].error_code == 0
        assert bystander.produce("untouched", b"still here").error_code == 0
    log = broker.log_text()
    bug = re.search("unexpected error|Traceback|please report", log)
    assert bug is None, log[bug.start() - 200 : bug.start() + 4000]
    assert not fuzz.wrong, f"{len(fuzz.wrong)} of seed {SEED}, first: {fuzz.wrong[:3]}"
    until(lambda: refusals(broker) - refused >= fuzz.closed, what=f"{fuzz.closed} lines on closed connections")
    assert refusals(broker) - refused == fuzz.closed
    assert len(broker.log_text()) - before_lines < 500 * REQUESTS
    assert resident_kb(broker.pid) - before_kb < GROWTH_LIMIT_KB
    # Both reactions must occur.
    assert fuzz.outcomes["answer"] > REQUESTS / 20 and fuzz.outcomes["close"] > REQUESTS / 20
    if REQUESTS >= 5000:
        assert set(fuzz.answered) == {API_NAMES[key] for key in EMBEDDED}
    assert broker.restart().is_running


def test_an_offset_with_the_greatest_retention_time_is_kept(broker):
    """Up to version 4 a commit has a retention time; the sum of the current time and the greatest exceeds 64 bits."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="one", partitions=[partition])
    request = OffsetCommitRequest(group_id="readers", retention_time_ms=2**63 - 1, topics=[topic])
    with Wire(broker.port) as wire:
        topic_ids(wire)
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["readers"])
        until(lambda: wire.ask(find, 4).coordinators[0].error_code == 0)
        until(lambda: wire.ask(request, 2).topics[0].partitions[0].error_code == 0)


@pytest.mark.parametrize("length", [-1, 2**31 - 1], ids=["negative", "oversized"])
def test_requests_before_a_bad_length_are_answered(broker, length):
    """A request that waits delays later ones, and the close of the connection, as in Kafka."""
    with Wire(broker.port) as wire:
        wire.create_topic("one")
        waits = Wire.fetch_request("one", 0, max_wait_ms=100, min_bytes=1)
        for requests in ([MetadataRequest(topics=[])], [waits], [waits, waits]):
            refused = refusals(broker)
            with Wire(broker.port) as other:
                stream = b"".join(request_frame(request, 9, 7) for request in requests)
                other.socket.sendall(stream + struct.pack(">i", length))
                other._correlation_id = 7
                for request in requests:
                    other.receive(request, 9)
                assert other.socket.recv(1) == b""
            until(lambda refused=refused: refusals(broker) == refused + 1)
