"""`validate --connect`: whether what a pipeline reads and writes is there."""

from collections.abc import Iterator

from odradek.spark_it.group import Group
from odradek.spark_it.sink_settings import TopicSink
from odradek.spark_it.source_settings import TopicSource
from odradek.spark_it.spec import Pipeline


def found(pipeline: Pipeline, group: Group) -> Iterator[str]:
    """Lines about what is there. Raises ClusterError for what is not."""
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            partitions = group.partitions(source)
            topics = dict.fromkeys(topic for topic, _ in partitions)
            for topic in topics:
                count = sum(1 for of, _ in partitions if of == topic)
                yield f"  source {name}: topic {topic} is there, {_partitions(count)}"
            if not topics:
                yield f"  source {name}: no topic is there yet that matches {source.topics_regex}"
    written = [("sink", pipeline.sink.topic)] if isinstance(pipeline.sink, TopicSink) else []
    if pipeline.errors.deadletterqueue_topic_name is not None:
        written.append(("dead letters", pipeline.errors.deadletterqueue_topic_name))
    for what, topic in written:
        count = len(group.partitions(TopicSource({"topics": topic})))
        yield f"  {what}: topic {topic} is there, {_partitions(count)}"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
