"""Bad records that stop a pipeline, in the text of Spark's errors."""

import json

from pyspark.sql import Column
from pyspark.sql import functions as f

from odradek.spark_it.dead_letters.headers import BadRecordError, Failure, Origin, Stage

_MARK = "odradek bad record "


def raise_bad_record(origin: Column, error: Column) -> Column:
    """Return a condition that fails where it is evaluated, with the bad record in its error."""
    about = f.to_json(f.struct(origin.alias("origin"), error.alias("error")))
    return f.raise_error(f.concat(f.lit(_MARK), about)).cast("boolean")


def bad_record(error: BaseException) -> BadRecordError | None:
    """Return the bad record that made Spark fail; None if it failed for another reason."""
    text = str(error)
    at = text.find(_MARK)
    if at < 0:
        return None
    try:
        read, _ = json.JSONDecoder().raw_decode(text, at + len(_MARK))
        origin, failure = read.get("origin"), read["error"]
        return BadRecordError(
            Origin(origin["topic"], origin["partition"], origin["offset"]) if origin else None,
            Failure(
                Stage(failure["stage"]),
                failure["class_name"],
                failure["exception_class_name"],
                failure["message"],
            ),
        )
    except (ValueError, KeyError, TypeError):
        return None
