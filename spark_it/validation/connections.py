"""Checks of `validate --connect`: topics and subjects must exist."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from odradek.spark_it.dead_letters import topic as dead_letter_topic
from odradek.spark_it.definition.settings import RecordFormat
from odradek.spark_it.definition.sink_keys import TopicSink
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.kafka.requests import ClusterError, ClusterRequests, MissingTopicsError


def check_connections(pipeline: Pipeline, cluster: ClusterRequests) -> Iterator[str]:
    """Yield lines about existing topics and schemas. Raises ClusterError for missing ones, for all topics at once."""
    missing, problems = list[str](), list[str]()
    yield from _check_topics(pipeline, cluster, missing)
    if pipeline.errors.deadletterqueue_topic_name is not None:
        yield from _check_dead_letters(pipeline, cluster, problems)
    if missing:
        problems.insert(0, str(MissingTopicsError(list(dict.fromkeys(missing)))))
    if problems:
        raise ClusterError("; ".join(problems))
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            yield from _check_subjects(f"source {name}", source, source.topics[0] if len(source.topics) == 1 else None)
    if isinstance(pipeline.sink, TopicSink):
        yield from _check_subjects("sink", pipeline.sink, pipeline.sink.topic)


def _check_topics(pipeline: Pipeline, cluster: ClusterRequests, missing: list[str]) -> Iterator[str]:
    """Yield lines about the topics that are read and written; add those that do not exist to `missing`."""
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource) and source.topics_regex is None:
            for topic in source.topics:
                yield from _check_topic(f"source {name}", topic, cluster, missing)
        elif isinstance(source, TopicSource):
            counts = Counter(topic for topic, _ in cluster.list_partitions(source))
            for topic, count in counts.items():
                yield f"  source {name}: topic {topic} exists, {_format_count(count)}"
            if not counts:
                yield f"  source {name}: no topic matches {source.topics_regex} yet"
    if isinstance(pipeline.sink, TopicSink):
        yield from _check_topic("sink", pipeline.sink.topic, cluster, missing)


def _check_topic(what: str, topic: str, cluster: ClusterRequests, missing: list[str]) -> Iterator[str]:
    try:
        count = len(cluster.list_partitions(TopicSource({"topics": topic})))
    except MissingTopicsError:
        missing.append(topic)
    else:
        yield f"  {what}: topic {topic} exists, {_format_count(count)}"


def _check_dead_letters(pipeline: Pipeline, cluster: ClusterRequests, problems: list[str]) -> Iterator[str]:
    """Yield a line about the dead-letter topic. If it is missing and a run cannot create it, add the reason to
    `problems`."""
    topic = pipeline.errors.deadletterqueue_topic_name
    assert topic is not None
    missing: list[str] = []
    yield from _check_topic("dead letters", topic, cluster, missing)
    if not missing:
        return
    too_many = dead_letter_topic.find_replication_problem(pipeline, cluster)
    if too_many is None:
        yield f"  dead letters: topic {topic} does not exist yet; a run creates it"
    else:
        problems.append(f"dead-letter topic {topic} does not exist: {too_many}")


def _check_subjects(what: str, settings: RecordFormat, topic: str | None) -> Iterator[str]:
    """Yield lines about the subjects of schemas that are not in the file."""
    sides: tuple[Literal["value", "key"], ...] = ("value", "key")
    for side in sides:
        part = settings.get_part_format(side)
        subject = part.subject or (f"{topic}-{side}" if topic else None)
        if part.registry_url is None or subject is None:
            continue
        # These modules import pyspark, which `validate --connect` needs only for a registry.
        from odradek.spark_it.formats.columns import UnavailableError
        from odradek.spark_it.formats.registry import Registry, RegistryAddress, RegistryError

        address = RegistryAddress.parse(part.registry_url, part.registry_user_info)
        try:
            newest = Registry(address).fetch_latest(subject)
        except (RegistryError, UnavailableError) as error:
            raise ClusterError(f"{what}: {error}") from None
        presence = "does not exist yet" if newest is None else f"exists, with schema {newest.id}"
        yield f"  {what}: subject {subject} in {address.url} {presence}"


def _format_count(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
