"""SocketWriter sends a bounded amount in each reactor iteration."""

from types import SimpleNamespace

from odradek.server.measurements.socket_counts import SocketCounts
from odradek.server.network.writers.socket_writer import SocketWriter
from odradek.server.network.writers.write_coalescer import WriteCoalescer


def test_an_iteration_sends_a_bounded_number_of_pieces():
    """A response may have a small piece for each of thousands of partitions."""
    sent, registered, drained = [], [], []

    def send(data, flags=0):
        sent.append(bytes(data))
        return len(data)

    transport = SimpleNamespace(
        getHandle=lambda: SimpleNamespace(send=send),
        registerProducer=lambda producer, is_streaming: registered.append(producer),
        unregisterProducer=lambda: None,
        startWriting=lambda: None,
    )
    counts = SocketCounts()
    files = SimpleNamespace(send_file=None, run_read=None, monotonic=None)
    writer = SocketWriter(transport, WriteCoalescer(), files, lambda: drained.append(True), counts)
    pieces = [b"%d" % number for number in range(2000)]
    writer.send(list(pieces))
    steps = [len(sent)]
    while not writer.is_idle:
        registered[0].resumeProducing()
        steps.append(len(sent) - sum(steps))
    assert sent == pieces
    assert max(steps) == 512
    assert drained == [True]
    assert (counts.responses, counts.sent_bytes) == (1, sum(map(len, pieces)))
