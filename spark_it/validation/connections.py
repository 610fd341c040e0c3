"""`validate --connect`: checks that topics, schemas and tables exist."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from odradek.spark_it.dead_letters import topic as dead_letter_topic
from odradek.spark_it.definition.settings import RecordFormat
from odradek.spark_it.definition.sink_keys import TopicSink
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.kafka.requests import ClusterError, ClusterRequests, MissingTopicsError


def found(pipeline: Pipeline, group: ClusterRequests) -> Iterator[str]:
    """Yield lines about existing topics and schemas. Raises ClusterError for missing ones, for all topics at once."""
    missing, problems = list[str](), list[str]()
    yield from _topics(pipeline, group, missing)
    if pipeline.errors.deadletterqueue_topic_name is not None:
        yield from _dead_letters(pipeline, group, problems)
    if missing:
        problems.insert(0, str(MissingTopicsError(list(dict.fromkeys(missing)))))
    if problems:
        raise ClusterError("; ".join(problems))
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            yield from _subjects(f"source {name}", source, source.topics[0] if len(source.topics) == 1 else None)
    if isinstance(pipeline.sink, TopicSink):
        yield from _subjects("sink", pipeline.sink, pipeline.sink.topic)


def _topics(pipeline: Pipeline, group: ClusterRequests, missing: list[str]) -> Iterator[str]:
    """Yield lines about the topics that are read and written; add those that do not exist to `missing`."""
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource) and source.topics_regex is None:
            for topic in source.topics:
                yield from _topic(f"source {name}", topic, group, missing)
        elif isinstance(source, TopicSource):
            counts = Counter(topic for topic, _ in group.list_partitions(source))
            for topic, count in counts.items():
                yield f"  source {name}: topic {topic} exists, {_partitions(count)}"
            if not counts:
                yield f"  source {name}: no topic matches {source.topics_regex} yet"
    if isinstance(pipeline.sink, TopicSink):
        yield from _topic("sink", pipeline.sink.topic, group, missing)


def _topic(what: str, topic: str, group: ClusterRequests, missing: list[str]) -> Iterator[str]:
    try:
        count = len(group.list_partitions(TopicSource({"topics": topic})))
    except MissingTopicsError:
        missing.append(topic)
    else:
        yield f"  {what}: topic {topic} exists, {_partitions(count)}"


def _dead_letters(pipeline: Pipeline, group: ClusterRequests, problems: list[str]) -> Iterator[str]:
    """Yield a line about the dead-letter topic. If it is missing and a run cannot create it, add the reason to
    `problems`."""
    topic = pipeline.errors.deadletterqueue_topic_name
    assert topic is not None
    missing: list[str] = []
    yield from _topic("dead letters", topic, group, missing)
    if not missing:
        return
    too_many = dead_letter_topic.too_many_replicas(pipeline, group)
    if too_many is None:
        yield f"  dead letters: topic {topic} does not exist yet; a run creates it"
    else:
        problems.append(f"dead-letter topic {topic} does not exist: {too_many}")


def _subjects(of: str, settings: RecordFormat, topic: str | None) -> Iterator[str]:
    """Yield lines about the subjects of schemas that are not in the file."""
    sides: tuple[Literal["value", "key"], ...] = ("value", "key")
    for side in sides:
        part = settings.part(side)
        subject = part.subject or (f"{topic}-{side}" if topic else None)
        if part.registry_url is None or subject is None:
            continue
        # These modules import pyspark, which `validate --connect` needs only for a registry.
        from odradek.spark_it.formats.columns import UnavailableError
        from odradek.spark_it.formats.registry import Registry, RegistryAddress, RegistryError

        address = RegistryAddress.parse(part.registry_url, part.registry_user_info)
        try:
            newest = Registry(address).latest(subject)
        except (RegistryError, UnavailableError) as error:
            raise ClusterError(f"{of}: {error}") from None
        what = "does not exist yet" if newest is None else f"exists, with schema {newest.id}"
        yield f"  {of}: subject {subject} in {address.url} {what}"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
