"""A source whose broker is unavailable for longer than Kafka's clients wait."""

import threading
import time

from spark_it.tests.data import Topics
from spark_it.tests.spark.engine import Engine, order, orders

HASTY = 'consumer.override."default.api.timeout.ms" = 2000\nconsumer.override."request.timeout.ms" = 1000\n'


def test_a_pipeline_continues_when_the_broker_of_its_source_is_back(spark, start_broker, tmp_path, unique):
    broker = start_broker()
    topics = Topics(broker.bootstrap_servers)
    topics.produce(topics.create(unique), [order(1), order(2)])
    engine = Engine(spark, broker.bootstrap_servers, tmp_path, unique)
    stop, is_killed, is_away = threading.Event(), threading.Event(), threading.Event()
    before: list[str] = []

    def during(batch):
        if batch == 0:
            broker.kill()
            # On a busy machine the clients' short waits may have ended before.
            before.extend(engine.said)
            is_killed.set()
        else:
            stop.set()

    engine.kept.during = during

    def come_back():
        give_up_at = time.monotonic() + 100
        assert is_killed.wait(100)
        while not any("retrying in" in line for line in engine.said[len(before) :]):
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        is_away.set()
        broker.restart()
        topics.produce(unique, [order(3)])

    back = threading.Thread(target=come_back)
    back.start()
    try:
        engine.run(HASTY + 'trigger = "100 milliseconds"\n' + orders(unique), now=False, stop=stop)
    finally:
        stop.set()
        back.join(60)
    assert is_away.is_set()
    assert [row["id"] for row in engine.kept.rows] == [1, 2, 3]
    assert any("a source's broker is unavailable: " in line for line in engine.said)
