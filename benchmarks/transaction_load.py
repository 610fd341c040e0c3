"""Transactional producers for the raw-frame loader: produce and end transactions as fast as the broker responds.

A transaction has the requests of a Java producer at its defaults for that number of records: Produce 12 requests with
batches of up to 16 KB, one after another, and EndTxn 5 after all responses (KIP-890: the first Produce adds the
partition, the end returns the next epoch). Each connection is a producer with its own id.
"""

from __future__ import annotations

import select
import socket
import struct
import time
import uuid

import crc32c

from benchmarks import wire
from benchmarks.loader import DRAIN_S, RECEIVE_BYTES, Load, LoadSpec, now_ns

CONCURRENT_TRANSACTIONS = 51
NOT_READY = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
RETRY_NS = 1_000_000
BATCH_CRC, BATCH_CHECKED, BATCH_PRODUCER = 17, 21, 43
PRODUCER = struct.Struct(">qh")
SIZE = struct.Struct(">I")


class Producer:
    """One connection of TransactionLoad, and the state of its transaction.

    `frames` are the transaction's Produce requests in order; `waiting` numbers those without a successful response, and
    `due` those that are sent; when `waiting` is empty the end is due.
    """

    def __init__(self, connection: socket.socket, index: int, spec: LoadSpec, error_position: int) -> None:
        self.socket = connection
        self.name = f"bench-{uuid.uuid4().hex[:12]}-{index:04d}"
        self.error_position = error_position
        self.producer_id, self.epoch = self._initialize()
        self.frames: list[tuple[bytearray, int]] = []
        partition, done, now_ms = index % spec.partitions, 0, wire.now_ms()
        while done < spec.records_per_transaction:
            count = min(spec.records_per_batch, spec.records_per_transaction - done)
            batch = wire.record_batch(spec.value_bytes, count, now_ms, producer_id=self.producer_id, base_sequence=done)
            frame = wire.produce_frame(spec.topic, partition, batch, transactional_id=self.name)
            self.frames.append((bytearray(frame), frame.index(batch)))
            done += count
        self.rest = memoryview(b"")
        self.received = b""
        self.waiting: list[int] = []
        self.due: list[int] = []
        self.failed: list[int] = []
        self.retry_at_ns = 0
        self.is_ending = False
        self.transactions = 0
        self.began_ns = 0

    def _initialize(self) -> tuple[int, int]:
        self.socket.settimeout(30)
        while True:
            self.socket.sendall(wire.init_producer_id_frame(self.name))
            answer = wire.read_producer_answer(self.socket.recv(RECEIVE_BYTES))
            if not answer.error_code:
                return answer.producer_id, answer.epoch
            if answer.error_code not in NOT_READY:
                raise wire.WireError(f"no producer id: error {answer.error_code}")
            time.sleep(0.05)

    def begin(self) -> None:
        """Set the epoch in all batches and send them."""
        for frame, at in self.frames:
            PRODUCER.pack_into(frame, at + BATCH_PRODUCER, self.producer_id, self.epoch)
            with memoryview(frame) as whole:
                end = len(frame) - 3
                SIZE.pack_into(frame, at + BATCH_CRC, crc32c.crc32c(whole[at + BATCH_CHECKED : end]))
        self.waiting = list(range(len(self.frames)))
        self.is_ending = False
        self.began_ns = now_ns()
        self.send_waiting()

    def send_waiting(self) -> None:
        self.due, self.failed, self.retry_at_ns = self.waiting, [], 0
        self.queue(b"".join(self.frames[number][0] for number in self.due))

    def send_end(self, *, commit: bool) -> None:
        self.is_ending, self.retry_at_ns = True, 0
        self.queue(wire.end_txn_frame(self.name, self.producer_id, self.epoch, commit=commit))

    def queue(self, data: bytes) -> None:
        self.rest = memoryview(data)
        self.flush()

    def flush(self) -> None:
        while self.rest:
            try:
                self.rest = self.rest[self.socket.send(self.rest) :]
            except BlockingIOError:
                return

    def answers(self) -> list[bytes]:
        """Return the complete responses received, sizes included."""
        try:
            received = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        if not received:
            raise wire.WireError("the broker closed a connection")
        self.received += received
        found = []
        while len(self.received) >= 4:
            size = 4 + SIZE.unpack_from(self.received)[0]
            if len(self.received) < size:
                break
            found.append(self.received[:size])
            self.received = self.received[size:]
        return found


class TransactionLoad(Load):
    """One transaction after the other on each connection; every `abort_every`th is aborted."""

    def start(self) -> None:
        spec = self.spec
        self.markers = 0
        with wire.Admin(self.port_of(0), spec.host) as admin:
            admin.await_transactions("bench")
        position = wire.produce_error_position(spec.topic)
        self.producers: dict[int, Producer] = {}
        for index, connection in enumerate(self.sockets):
            self.producers[connection.fileno()] = Producer(connection, index, spec, position)
        for fd, producer in self.producers.items():
            producer.socket.setblocking(False)
            self.epoll.register(fd, select.EPOLLIN)
            producer.begin()
            self._watch(fd, producer)

    def run(self, until_ns: int, max_bytes: int) -> None:
        limit = self.payload_bytes + max_bytes
        while now_ns() < until_ns and self.payload_bytes < limit:
            self._turn(begin_next=True)

    def drain(self) -> None:
        deadline = now_ns() + int(DRAIN_S * 1e9)
        while any(producer.began_ns for producer in self.producers.values()):
            if now_ns() > deadline:
                raise wire.WireError(f"a transaction had no end after {DRAIN_S:.0f} s")
            self._turn(begin_next=False)

    def _turn(self, *, begin_next: bool) -> None:
        retries = any(producer.retry_at_ns for producer in self.producers.values())
        for fd, event in self.epoll.poll(0.001 if retries else 0.2):
            producer = self.producers[fd]
            if event & ~select.EPOLLOUT:
                for answer in producer.answers():
                    self._take(producer, answer)
            producer.flush()
            if not producer.began_ns and begin_next:
                producer.begin()
            self._watch(fd, producer)
        if begin_next:
            for fd, producer in self.producers.items():
                if not producer.began_ns:
                    producer.begin()
                    self._watch(fd, producer)
        if retries:
            self._retry()

    def _watch(self, fd: int, producer: Producer) -> None:
        self.epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if producer.rest else select.EPOLLIN)

    def _retry(self) -> None:
        now = now_ns()
        for fd, producer in self.producers.items():
            if 0 < producer.retry_at_ns <= now:
                if producer.is_ending:
                    producer.send_end(commit=self._is_commit(producer))
                else:
                    producer.send_waiting()
                self._watch(fd, producer)

    def _is_commit(self, producer: Producer) -> bool:
        every = self.spec.abort_every
        return not every or (producer.transactions + 1) % every != 0

    def _take(self, producer: Producer, answer: bytes) -> None:
        if producer.is_ending:
            self._take_end(producer, wire.read_producer_answer(answer))
            return
        number, *producer.due = producer.due
        position = producer.error_position
        code = int.from_bytes(answer[position : position + 2], "big")
        if code and (code not in NOT_READY and not producer.failed):
            raise wire.WireError(f"produce error {code}")
        if code:
            producer.failed.append(number)
        if not producer.due:
            producer.waiting = producer.failed
            if producer.failed:
                producer.retry_at_ns = now_ns() + RETRY_NS
            else:
                producer.send_end(commit=self._is_commit(producer))

    def _take_end(self, producer: Producer, response: wire.ProducerAnswer) -> None:
        if response.error_code in NOT_READY:
            producer.retry_at_ns = now_ns() + RETRY_NS
            return
        if response.error_code:
            raise wire.WireError(f"end of a transaction: error {response.error_code}")
        self.times.append(now_ns() - producer.began_ns)
        self.answers += 1
        self.payload_bytes += self.spec.value_bytes * self.spec.records_per_transaction
        if response.producer_id != producer.producer_id:
            raise wire.WireError("out of epochs: the load is too long for one producer id")
        producer.epoch, producer.began_ns = response.epoch, 0
        producer.transactions += 1

    def acked_records(self) -> int:
        """Return the number of offsets: those of each transaction's records and its marker."""
        return self.answers * (self.spec.records_per_transaction + 1)
