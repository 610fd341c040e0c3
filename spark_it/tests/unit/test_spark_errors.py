import pytest
from pyspark.errors import PySparkException

from odradek.spark_it.dead_letters.bad_records import find_bad_record
from odradek.spark_it.dead_letters.headers import FailureStage, RecordOrigin
from odradek.spark_it.spark.errors import describe_error, find_sql_line, is_broker_unavailable, is_worker_not_started

TASK = """An error occurred while calling o150.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 1) (127.0.0.1 executor driver): java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2896)"""
CAUSED = (
    TASK
    + """
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030
\tat x.y.Z(Z.scala:1)
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. \
SQLSTATE: 22012
\tat x.y.Z(Z.scala:1)
\t... 3 more"""
)
PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    raise ValueError("no")
ValueError: no such customer
"""
STREAM = """[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: Partition orders-0 is gone. \
SQLSTATE: XXKST
=== Streaming Query ===
Identifier: x"""
SQL = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. SQLSTATE: 42703; line 3 pos 7;
'Project ['x]
+- SubqueryAlias orders"""
PARSE = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'FRM'. SQLSTATE: 42601 (line 2, pos 10)

== SQL ==
SELECT 1"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TASK, "No space left on device"),
        (CAUSED, "Division by zero. Use `try_divide`."),
        (PYTHON, "ValueError: no such customer"),
        (STREAM, "Partition orders-0 is gone."),
        (SQL, "A column with name `x` cannot be resolved."),
        (PARSE, "Syntax error at or near 'FRM'."),
        ("", "RuntimeError"),
        ("x" * 600, "x" * 500 + "..."),
    ],
)
def test_an_error_is_one_line(text, line):
    assert describe_error(RuntimeError(text)) == line


def test_the_line_of_a_statement():
    assert find_sql_line(RuntimeError(SQL)) == 2
    assert find_sql_line(RuntimeError(PARSE)) == 1
    assert find_sql_line(RuntimeError("no line")) == 0


def test_a_bad_record_in_the_text_of_an_error():
    error = '{"stage":"VALUE_CONVERTER","class_name":"json","exception_class_name":"x.Y","message":"is \\"no\\" JSON"}'
    origin = '{"topic":"a","partition":1,"offset":7}'
    text = f'[USER_RAISED_EXCEPTION] odradek bad record {{"origin":{origin},"error":{error}}} SQLSTATE: P0001'
    found = find_bad_record(RuntimeError(f"Caused by: {text}\n\tat x\nCaused by: {text}"))
    assert found.origin == RecordOrigin("a", 1, 7) and found.failure.stage is FailureStage.VALUE_CONVERTER
    assert str(found) == 'record a-1 at offset 7: is "no" JSON (VALUE_CONVERTER in json)'
    found = find_bad_record(RuntimeError(f'odradek bad record {{"error":{error}}}'))
    assert found.origin is None
    assert find_bad_record(RuntimeError("other")) is None
    assert find_bad_record(RuntimeError("odradek bad record {cut")) is None


def test_a_data_source_without_a_reader():
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in main\n'
    another = "\nDuring handling of the above exception, another exception occurred:\n\n"
    first = f"{trace}NotImplementedError: nothing to read\n"
    second = f"{trace}PySparkRuntimeError: [A_B] data source silent throw exception: nothing to read\n"
    third = f"{trace}UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value\n"
    said = describe_error(RuntimeError(first + another + second + another + third))
    assert said == "PySparkRuntimeError: [A_B] data source silent throw exception: nothing to read"
    assert describe_error(RuntimeError(third)).startswith("UnboundLocalError: ")


@pytest.mark.parametrize(
    ("text", "is_away"),
    [
        (
            "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: org.apache.kafka.common.errors."
            "TimeoutException: Timed out waiting for a node assignment. Call: listNodes SQLSTATE: XXKST",
            True,
        ),
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 5 in 120000 milliseconds", True),
        ("Caused by: org.apache.kafka.common.errors.DisconnectException: Cancelled fetchMetadata request", True),
        ("Caused by: org.apache.kafka.common.errors.SaslAuthenticationException: no", False),
        ("Caused by: org.apache.kafka.common.errors.UnknownTopicOrPartitionException", False),
        ("java.util.concurrent.TimeoutException: Futures timed out after [60 seconds]", False),
    ],
)
def test_a_broker_that_does_not_answer(text, is_away):
    assert is_broker_unavailable(PySparkException(text)) == is_away


def test_a_worker_that_does_not_start_in_time():
    text = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Python worker failed to connect back."
    assert is_worker_not_started(PySparkException(text))
    assert not is_worker_not_started(PySparkException("java.util.concurrent.TimeoutException: Futures timed out"))


LOST = """Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason:
"""


@pytest.mark.parametrize(
    ("before", "reason", "after"),
    [
        ("[STREAM_FAILED] Query [id = a] terminated with exception: ", "Partition a-0 offset was changed from 9 to 3",
         ". SQLSTATE: XXKST\n=== Streaming Query ==="),
        (TASK + "\nCaused by: org.apache.spark.sql.kafka010.KafkaIllegalStateException: ",
         "Could not read records in offset [3, 9) for topic partition\na-0", ".\n\tat x.y.Z(Z.scala:1)"),
    ],
)  # fmt: skip
def test_deleted_records(before, reason, after):
    said = describe_error(PySparkException(before + LOST + reason + after))
    assert said.startswith(
        f"records were deleted before they were read: {' '.join(reason.split())}; set fail.on.data.loss = "
    )
