"""Errors of Spark as one readable line."""

import re

_SQLSTATE = re.compile(r"\s*SQLSTATE: [0-9A-Z]{5}.*", re.DOTALL)
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_JAVA = re.compile(r"^(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable)\b:?\s*")
_CAUSED_BY = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_QUERY = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_TASK = re.compile(r"^.*\(TID \d+\) \([^()]*\): (.*)$", re.MULTILINE)
_BROKER_UNAVAILABLE = re.compile(
    r"\bkafka\.common\.errors\."
    r"(?:Timeout|Disconnect|Network|BrokerNotAvailable|CoordinatorNotAvailable|LeaderNotAvailable|NotLeaderOrFollower)"
    r"Exception|Cannot fetch record for offset \d+ in \d+ milliseconds"
)
_WORKER_NOT_CONNECTED = "Python worker failed to connect back"
_DATA_LOSS = re.compile(
    r"set the source option failOnDataLoss to false\.\s+Reason:\s+(.+?)(?=\s+SQLSTATE:|\n\s*at |\n===|\Z)", re.DOTALL
)
"""The reason in an error of Spark's Kafka source, after six lines about the option failOnDataLoss."""
_AT = re.compile(r"line (\d+),? pos(?:ition)? \d+")
_LENGTH = 500
_DURING_HANDLING = "During handling of the above exception, another exception occurred:"
_NO_READER = "UnboundLocalError: cannot access local variable 'reader'"
"""A second error of PySpark if a Python data source fails to create its reader: PySpark closes the missing reader."""


def is_broker_unavailable(error: BaseException) -> bool:
    """Return whether Spark's Kafka source failed because a broker did not respond."""
    return _BROKER_UNAVAILABLE.search(str(error)) is not None


def is_worker_not_started(error: BaseException) -> bool:
    """Return whether a Python worker did not connect to Spark within 10 s, Spark's fixed limit, for lack of CPU time.
    The limit holds for workers that Spark starts without its daemon: those of the driver, as for transformWithState."""
    return _WORKER_NOT_CONNECTED in str(error)


def describe_error(error: BaseException) -> str:
    """Return the innermost cause of an error in one line, without Java's or Python's stack trace."""
    text = str(error)
    if data_loss := _DATA_LOSS.search(text):
        reason = " ".join(data_loss[1].split()).rstrip(".")
        remedy = "set fail.on.data.loss = false to continue without them, or use reset if the topic was created again"
        return f"records were deleted before they were read: {reason}; {remedy}"
    line = _find_python_error(text) or _find_innermost_cause(text)
    line = _SQLSTATE.sub("", _CLASS.sub("", _JAVA.sub("", _QUERY.sub("", line.strip()))))
    line = " ".join(line.split())
    return (line if len(line) <= _LENGTH else f"{line[:_LENGTH]}...") or type(error).__name__


def _find_python_error(text: str) -> str | None:
    """Return the last line of a Python traceback in the text; None if there is none."""
    first, found, traceback = text.rpartition("Traceback (most recent call last):")
    if not found:
        return None
    if _NO_READER in traceback and first.rstrip().endswith(_DURING_HANDLING):
        return _find_python_error(first.rstrip().removesuffix(_DURING_HANDLING))
    return next((line for line in traceback.split("\n") if line.strip() and not line[0].isspace()), None)


def _find_innermost_cause(text: str) -> str:
    causes = _CAUSED_BY.findall(text) or _TASK.findall(text)
    if causes:
        return str(causes[-1])
    lines = (line.removeprefix(": ") for line in text.split("\n") if line.strip())
    return next((line for line in lines if not line.startswith("An error occurred while calling")), "")


def find_sql_line(error: BaseException) -> int:
    """Return the line of the statement to which an error refers, counted from 0; 0 if it has none."""
    found = _AT.search(str(error))
    return max(0, int(found[1]) - 1) if found else 0
