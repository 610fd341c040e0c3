"""The state of a librdkafka consumer that hangs, and of the partitions that it reads."""

import json
from collections.abc import Iterator

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

ENDS_S = 10


def describe_statistics(statistics: str) -> Iterator[str]:
    """Describe librdkafka's statistics, which are JSON: the time, the group, each broker and each partition."""
    if not statistics:
        yield "there are no statistics"
        return
    read = json.loads(statistics)
    group = read.get("cgrp", {})
    yield f"statistics of {read['time']} s (Unix time): group: {_pick(group, *GROUP)}"
    for name, broker in read["brokers"].items():
        yield f"broker {name}: {_pick(broker, *BROKER)}"
    for name, topic in read["topics"].items():
        for number, partition in topic["partitions"].items():
            yield f"partition {name}-{number}: {_pick(partition, *PARTITION)}"


GROUP = ("state", "stateage", "join_state", "assignment_size")
BROKER = ("state", "stateage", "outbuf_cnt", "waitresp_cnt", "req_timeouts", "rxidle")
PARTITION = (
    *("broker", "leader", "fetch_state", "fetchq_cnt", "query_offset", "next_offset", "app_offset"),
    *("hi_offset", "ls_offset", "leader_epoch", "eof_offset"),
)


def _pick(values: dict[str, object], *names: str) -> str:
    return " ".join(f"{name}={values[name]}" for name in names if name in values)


def describe_ends(bootstrap: str, topic: str, partitions: int, isolation: str) -> Iterator[str]:
    """Describe first and last offsets of partitions as the brokers return them to a new consumer."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reads-ends", "isolation.level": isolation, "log_level": 0}
    )
    for partition in range(partitions):
        try:
            offsets = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ENDS_S)
            yield f"brokers have {topic}-{partition} from and to: {offsets}"
        except KafkaException as error:
            yield f"brokers do not return the ends of {topic}-{partition}: {error}"
    consumer.close()
