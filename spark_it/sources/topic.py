"""The topic source, with Spark's Kafka source. Its offsets are in the checkpoint; it commits no offsets to Kafka."""

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from odradek.spark_it.dead_letters.headers import DATA_EXCEPTION, FailureStage
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.format import Format, FormatError, Side, make_format
from odradek.spark_it.formats.json import JsonFormat, collect_unknown_fields
from odradek.spark_it.formats.stored_responses import ResponseLocation
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.source import SourceError, Stream
from odradek.spark_it.spark.columns import ERROR_TYPE, HEADERS_TYPE

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def make(name: str, source: TopicSource, pipeline: Pipeline, responses: Path | None = None) -> "TopicStream":
    return TopicStream(name, source, pipeline, responses)


class TopicStream(Stream):
    """A `Stream` of topics. Headers are read only if SQL or dead letters need them.

    `responses` is a folder for stored responses of schema registries, so that a record that is decoded several times in
    a batch is decoded the same way each time. Columns are created once for all batches, because each takes several
    calls of the JVM.
    """

    def __init__(self, name: str, source: TopicSource, pipeline: Pipeline, responses: Path | None = None) -> None:
        self._name = name
        self._source = source
        self._pipeline = pipeline
        topic = source.topics[0] if len(source.topics) == 1 else None

        def make_side(side: Side) -> Format:
            location = None if responses is None else ResponseLocation(str(responses), f"{name}.{side}")
            return make_format(source.get_part_format(side), pipeline, topic, side, location)

        self._value = make_side("value")
        self._key = make_side("key")
        self._has_headers = source.include_headers or pipeline.errors.deadletterqueue_topic_name is not None

    def schema(self, spark: SparkSession) -> StructType:
        value = self._value.schema()
        fields = list(value.fields) if isinstance(value, StructType) else [StructField("value", value)]
        if self._source.keep_unknown_fields:
            fields.append(StructField("_rescued", StringType()))
        fields += [
            StructField("_key", self._key.schema()),
            StructField("_topic", StringType()),
            StructField("_partition", IntegerType()),
            StructField("_offset", LongType()),
            StructField("_timestamp", TimestampType()),
        ]
        if self._source.include_headers:
            fields.append(StructField("_headers", ArrayType(_HEADER)))
        names: set[str] = set()
        for field in fields:
            if field.name.casefold() in names:
                raise FormatError(f"duplicate column {field.name}")
            names.add(field.name.casefold())
        return StructType(fields)

    def read_stream(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        source = self._source
        if start is not None and not start:
            raise SourceError(f"source {self._name}: no topic matches {source.topics_regex}")
        reader = spark.readStream.format("kafka").options(**self._make_options())
        reader = reader.option(
            "startingOffsets", _format_offsets(start) if start is not None else source.auto_offset_reset
        )
        return reader.load()

    def _make_options(self) -> dict[str, str]:
        source = self._source
        options = {
            "kafka.bootstrap.servers": ",".join(self._pipeline.settings.bootstrap_servers),
            "kafka.client.id": self._pipeline.name,
            "kafka.isolation.level": source.isolation_level,
            # Spark seeks back to the start of the next batch. If the consumer has an open fetch at the end of a
            # partition, the seek waits for its response, half a second by default.
            "kafka.fetch.max.wait.ms": "50",
            "failOnDataLoss": "true" if source.fail_on_data_loss else "false",
            "includeHeaders": "true" if self._has_headers else "false",
        }
        overrides = self._pipeline.settings.passed["consumer.override."]
        options |= {f"kafka.{key}": value for key, value in overrides.items()}
        if source.topics_regex is not None:
            options["subscribePattern"] = source.topics_regex
        else:
            options["subscribe"] = ",".join(source.topics)
        if source.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
        return options

    def decode(self, raw: DataFrame) -> DataFrame:
        parsed = raw.withColumns(self._parsed) if self._parsed else raw
        return parsed.withColumns(self._decoded).select(*self._columns)

    @cached_property
    def _parsed(self) -> dict[str, Column]:
        """Columns with parsed JSON: `__value_parsed`, `__key_parsed`."""
        return {
            f"__{side}_parsed": format_.parse(f.col(side))
            for side, format_ in self._get_formats().items()
            if isinstance(format_, JsonFormat)
        }

    @cached_property
    def _decoded(self) -> dict[str, Column]:
        """Columns with the results of `Format.decode`: `__value`, `__key`."""
        return {
            f"__{side}": format_.decode_parsed(f.col(f"__{side}_parsed"), f.col(side))
            if isinstance(format_, JsonFormat)
            else format_.decode(f.col(side))
            for side, format_ in self._get_formats().items()
        }

    def _get_formats(self) -> dict[Side, Format]:
        return {"value": self._value, "key": self._key}

    @cached_property
    def _columns(self) -> list[Column]:
        """The columns of DECODED."""
        value_type = self._value.schema()
        value = f.col("__value.value")
        if isinstance(value_type, StructType):
            columns = [value[field.name].alias(field.name) for field in value_type.fields]
        else:
            columns = [value.alias("value")]
        if self._source.keep_unknown_fields and isinstance(value_type, StructType):
            columns.append(collect_unknown_fields(f.col("value"), value_type).alias("_rescued"))
        columns += [f.col("__key.value").alias("_key")]
        columns += [f.col(name).alias(f"_{name}") for name in ("topic", "partition", "offset", "timestamp")]
        headers = f.col("headers") if self._has_headers else f.lit(None).cast(HEADERS_TYPE)
        if self._source.include_headers:
            columns.append(headers.alias("_headers"))
        return [
            f.struct(*columns).alias("row"),
            f.coalesce(
                _make_error(FailureStage.KEY_CONVERTER, self._key.name, "key", f.col("__key.error")),
                _make_error(FailureStage.VALUE_CONVERTER, self._value.name, "value", f.col("__value.error")),
            ).alias("error"),
            f.struct("topic", "partition", "offset").alias("origin"),
            f.col("key"),
            f.col("value"),
            headers.alias("headers"),
        ]


def _make_error(stage: FailureStage, format_name: str, side: str, message: Column) -> Column:
    struct = f.struct(
        f.lit(stage.value).alias("stage"),
        f.lit(format_name).alias("class_name"),
        f.lit(DATA_EXCEPTION).alias("exception_class_name"),
        f.concat(f.lit(f"{side} "), message).alias("message"),
    )
    return f.when(message.isNotNull(), struct).cast(ERROR_TYPE)


def _format_offsets(start: Mapping[TopicPartition, int]) -> str:
    """Return start offsets in Spark's JSON format."""
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), offset in start.items():
        by_topic[topic][str(partition)] = offset
    return json.dumps(by_topic)
