"""Bad records that stop a pipeline, encoded in the text of Spark's errors."""

import json

from pyspark.sql import Column
from pyspark.sql import functions as f

from odradek.spark_it.dead_letters.headers import BadRecordError, Failure, FailureStage, RecordOrigin

_MARK = "odradek bad record "


def raise_bad_record(origin: Column, error: Column) -> Column:
    """Return a condition that raises an error, with the bad record in its text, when it is evaluated."""
    description = f.to_json(f.struct(origin.alias("origin"), error.alias("error")))
    return f.raise_error(f.concat(f.lit(_MARK), description)).cast("boolean")


def find_bad_record(error: BaseException) -> BadRecordError | None:
    """Return the bad record that made Spark fail; None if Spark failed for another reason."""
    text = str(error)
    at = text.find(_MARK)
    if at < 0:
        return None
    try:
        content, _ = json.JSONDecoder().raw_decode(text, at + len(_MARK))
        origin, failure = content.get("origin"), content["error"]
        return BadRecordError(
            RecordOrigin(origin["topic"], origin["partition"], origin["offset"]) if origin else None,
            Failure(
                FailureStage(failure["stage"]),
                failure["class_name"],
                failure["exception_class_name"],
                failure["message"],
            ),
        )
    except (ValueError, KeyError, TypeError):
        return None
