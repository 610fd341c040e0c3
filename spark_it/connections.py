"""`validate --connect`: whether what a pipeline reads and writes is there."""

from collections.abc import Iterator
from typing import Literal

from odradek.spark_it.group import ClusterError, Group
from odradek.spark_it.settings import RecordFormat
from odradek.spark_it.sink_settings import TopicSink
from odradek.spark_it.source_settings import TopicSource
from odradek.spark_it.spec import Pipeline


def found(pipeline: Pipeline, group: Group) -> Iterator[str]:
    """Lines about topics and schema registries that are there. Raises ClusterError for what is not."""
    yield from _topics(pipeline, group)
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            yield from _subjects(f"source {name}", source, source.topics[0] if len(source.topics) == 1 else None)
    if isinstance(pipeline.sink, TopicSink):
        yield from _subjects("sink", pipeline.sink, pipeline.sink.topic)


def _topics(pipeline: Pipeline, group: Group) -> Iterator[str]:
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


def _subjects(of: str, settings: RecordFormat, topic: str | None) -> Iterator[str]:
    """What a registry has of the schemas that are not in the file."""
    sides: tuple[Literal["value", "key"], ...] = ("value", "key")
    for side in sides:
        part = settings.part(side)
        subject = part.subject or (f"{topic}-{side}" if topic else None)
        if part.registry_url is None or subject is None:
            continue
        # What reads records brings Spark's package with it.
        from odradek.spark_it.formats.columns import UnavailableError
        from odradek.spark_it.formats.registry import Address, Registry, RegistryError

        address = Address.of(part.registry_url, part.registry_user_info)
        try:
            newest = Registry(address).latest(subject)
        except (RegistryError, UnavailableError) as error:
            raise ClusterError(f"{of}: {error}") from None
        what = "is not there yet" if newest is None else f"is there, with schema {newest.id}"
        yield f"  {of}: subject {subject} in {address.url} {what}"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
