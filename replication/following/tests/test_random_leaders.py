"""Random elections, crashes, cuts and deletions among three brokers: afterwards all logs are equal.

Any live broker may be elected, also one that lacks records, and only some brokers may hear of it. A crash loses
unsynced bytes, torn or not. Between these rounds the brokers are brought back, and their logs have to converge.
"""

from random import Random

import pytest

from odradek.protocol.records import iter_batches, read_header
from odradek.replication.following.tests.cluster import LogCluster, contents


class Chaos:
    """Random actions on a cluster."""

    def __init__(self, seed):
        self.random = Random(seed)
        codec = self.random.choice(["producer", "gzip"])
        self.cluster = LogCluster(3, compression_type=codec, retention_ms=-1)
        self.count = 0
        self.cluster.elect(self.random.choice([1, 2, 3]))

    def act(self):
        action = self.random.choice(
            [self.append] * 8
            + [self.pass_time] * 8
            + [self.elect] * 3
            + [self.crash, self.restart, self.restart, self.cut, self.heal, self.flush, self.flush, self.delete_records]
        )
        action()

    def live(self):
        return [number for number, node in self.cluster.nodes.items() if node.is_up]

    def leaders(self):
        """The brokers that lead in their own view, of which several may be out of date."""
        nodes = [self.cluster.nodes[number] for number in self.live()]
        return [node for node in nodes if 0 in node.partitions and node.partitions[0].is_leader]

    def append(self):
        for node in self.leaders():
            for _ in range(self.random.randint(0, 6)):
                self.count += 1
                values = [b"%d" % self.count * self.random.randint(1, 30)] * self.random.randint(1, 4)
                self.cluster.append(*values, node=node)

    def pass_time(self):
        self.cluster.run(self.random.choice([1, 2, 3, 5, 20, 600]))

    def elect(self):
        live = self.live()
        if live:
            leader = self.random.choice(live)
            informed = [number for number in live if self.random.random() < 0.7]
            isr = self.random.choice([(leader,), tuple(live)])
            epoch = self.cluster.state[0].leader_epoch + self.random.randint(1, 3)
            self.cluster.elect(leader, epoch=epoch, isr=isr, informed=informed)

    def crash(self):
        live = self.live()
        if live:
            self.cluster.nodes[self.random.choice(live)].crash(self.random.choice([None, self.random]))

    def restart(self):
        for number, node in self.cluster.nodes.items():
            if not node.is_up:
                self.cluster.restart(number)
                if self.cluster.state[0].leader == number:
                    # It may have lost records of its epoch, so the controller begins another one.
                    self.elect()
                self.cluster.inform(number)
                return

    def cut(self):
        self.cluster.cuts.add(frozenset(self.random.sample([1, 2, 3], 2)))

    def heal(self):
        self.cluster.cuts.clear()

    def flush(self):
        live = self.live()
        if live:
            node = self.cluster.nodes[self.random.choice(live)]
            if 0 in node.partitions:
                node.log().flush(0)

    def delete_records(self):
        for node in self.leaders():
            log = node.log()
            log.delete_records_before(self.random.randint(log.log_start_offset, log.high_watermark))
            if self.random.random() < 0.5:
                log.remove_deleted(log.delete_old_segments(0))

    def converge(self):
        self.heal()
        while len(self.live()) < 3:
            self.restart()
        self.cluster.elect(self.random.choice([1, 2, 3]))
        self.cluster.append(b"last")
        self.cluster.run(5000)

    def check(self):
        logs = [node.log() for node in self.cluster.nodes.values()]
        end_offsets = {log.log_end_offset for log in logs}
        assert len(end_offsets) == 1, end_offsets
        start = max(log.log_start_offset for log in logs)
        views = [(batches_from(log, start), epochs_from(log, start), log.high_watermark) for log in logs]
        assert views[0] == views[1] == views[2]
        assert views[0][2] == logs[0].log_end_offset
        for log in logs:
            entries = log.leader_epochs.entries
            assert entries == sorted(set(entries))
            assert log.latest_epoch <= self.cluster.state[0].leader_epoch
            expected = first = log.segments[0].base_offset
            for batch in iter_batches(contents(log)):
                header = read_header(batch)
                assert header.base_offset == expected or header.base_offset <= max(log.log_start_offset, first)
                if header.last_offset >= log.log_start_offset:
                    epoch = log.epoch_for_offset(max(header.base_offset, log.log_start_offset))
                    assert epoch == header.partition_leader_epoch
                expected = header.next_offset


def batches_from(log, start):
    """Return the batches that reach `start`, as bytes."""
    return [bytes(batch) for batch in iter_batches(contents(log)) if read_header(batch).last_offset >= start]


def epochs_from(log, start):
    """Return the leader epochs from `start` on."""
    entries = log.leader_epochs.entries
    ends = [*(offset for _, offset in entries), log.log_end_offset][1:]
    return [(epoch, max(offset, start)) for (epoch, offset), end in zip(entries, ends, strict=False) if end > start]


@pytest.mark.parametrize("seed", range(60))
def test_logs_converge(seed):
    chaos = Chaos(seed)
    for _ in range(4):
        for _ in range(chaos.random.randint(5, 60)):
            chaos.act()
        chaos.converge()
        chaos.check()
    for number, node in chaos.cluster.nodes.items():
        before = node.log().leader_epochs.entries, batches_from(node.log(), 0)
        node.stop()
        chaos.cluster.restart(number)
        log = node.logs.get("t", 0)
        assert (log.leader_epochs.entries, batches_from(log, 0)) == before
