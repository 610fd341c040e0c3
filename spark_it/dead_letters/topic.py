"""The dead-letter topic. A run creates it if it is missing, with one partition as Kafka Connect does.

Source: DeadLetterQueueReporter.createAndSetup and SinkConnectorConfig of Connect 4.3.
"""

from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.kafka.requests import ClusterError, ClusterRequests, MissingTopicsError

_KEY = "errors.deadletterqueue.topic.replication.factor"


def create_if_missing(pipeline: Pipeline, cluster: ClusterRequests) -> bool:
    """Create the topic if it is missing, and return whether it was created. Raises ClusterError."""
    topic = pipeline.errors.deadletterqueue_topic_name
    assert topic is not None
    try:
        cluster.list_partitions(TopicSource({"topics": topic}))
    except MissingTopicsError:
        pass
    else:
        return False
    factor = pipeline.errors.deadletterqueue_topic_replication_factor
    too_many = find_replication_problem(pipeline, cluster)
    if too_many is not None:
        raise ClusterError(f"dead-letter topic {topic} does not exist, and cannot be created: {too_many}")
    try:
        cluster.create_topic(topic, factor)
    except ClusterError as error:
        raise ClusterError(f"dead-letter topic {topic} does not exist: {error}; create it, or see {_KEY}") from None
    return True


def find_replication_problem(pipeline: Pipeline, cluster: ClusterRequests) -> str | None:
    """Return the reason why there are too few brokers for the topic's replicas, and the remedy; None if there are
    enough.

    Raises ClusterError.
    """
    factor, brokers = pipeline.errors.deadletterqueue_topic_replication_factor, cluster.count_brokers()
    if factor <= brokers:
        return None
    available = "there is 1 broker" if brokers == 1 else f"there are {brokers} brokers"
    return f"{_KEY} is {factor}, but {available}; set it to {brokers} or less, or create the topic"
