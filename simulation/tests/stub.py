"""A minimal client: writes one record at a time, with retries."""

from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.simulation.api import ConnectionLost
from odradek.simulation.history import Guarantee, Outcome, SentRecord


class StubProducer:
    def __init__(self, name, world, history, partition):
        self.name = name
        self.world = world
        self.history = history
        self.partition = partition

    async def run(self):
        connection = None
        number = 0
        while not self.world.is_ending:
            try:
                if connection is None or connection.is_lost:
                    connection = await self.world.connect()
                number += 1
                await self.send(connection, b"%s-%d" % (self.name.encode(), number))
            except ConnectionLost:
                connection = None
            await self.world.sleep(self.world.random.random() * 0.1)

    async def send(self, connection, value):
        record = SentRecord(value, b"k", (), self.world.now_ms())
        send = self.history.begin_send(self.name, self.partition, self.name, Guarantee.PLAIN, [record])
        batch = build_batch([(record.timestamp, record.key, record.value, ())])
        data = ProduceRequestPartitionProduceData(index=self.partition[1], records=batch)
        topic_data = ProduceRequestTopicProduceData(name=self.partition[0], partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic_data])
        self.history.attempt_send(send)
        try:
            answer = await connection.request(request, 9, client_id=self.name)
        except ConnectionLost:
            self.history.end_send(send, Outcome.UNKNOWN)
            raise
        row = answer.responses[0].partition_responses[0]
        if row.error_code:
            self.history.end_send(send, Outcome.UNKNOWN, error=str(row.error_code))
        else:
            self.history.end_send(send, Outcome.OK, row.base_offset, row.log_append_time_ms)


def stub_clients(world, history, scenario):
    names = [(topic.name, index) for topic in scenario.topics for index in range(topic.partitions)]
    return [StubProducer(f"p{number}", world, history, name) for number, name in enumerate(names)]
