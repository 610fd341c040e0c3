"""Spark's errors as one readable line."""

import re

_SQLSTATE = re.compile(r"\s*SQLSTATE: [0-9A-Z]{5}.*", re.DOTALL)
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_JAVA = re.compile(r"^(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable)\b:?\s*")
_CAUSED_BY = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_QUERY = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_TASK = re.compile(r"^.*\(TID \d+\) \([^()]*\): (.*)$", re.MULTILINE)
_AWAY = re.compile(
    r"\bkafka\.common\.errors\."
    r"(?:Timeout|Disconnect|Network|BrokerNotAvailable|CoordinatorNotAvailable|LeaderNotAvailable|NotLeaderOrFollower)"
    r"Exception|Cannot fetch record for offset \d+ in \d+ milliseconds"
)
_LOST = re.compile(
    r"set the source option failOnDataLoss to false\.\s+Reason:\s+(.+?)(?=\s+SQLSTATE:|\n\s*at |\n===|\Z)", re.DOTALL
)
"""What Spark's Kafka source says in six lines, its own option among them, before what there is to say."""
_AT = re.compile(r"line (\d+),? pos(?:ition)? \d+")
_LENGTH = 500
_ANOTHER = "During handling of the above exception, another exception occurred:"
_NO_READER = "UnboundLocalError: cannot access local variable 'reader'"
"""What PySpark says after the error of a data source's own that has no reader: it ends one that it has not got."""


def is_broker_away(error: BaseException) -> bool:
    """Whether Spark's Kafka source has failed for want of an answer, as from a broker that is down."""
    return _AWAY.search(str(error)) is not None


def readable(error: BaseException) -> str:
    """One line without Java's or Python's stack: the innermost cause."""
    text = str(error)
    if lost := _LOST.search(text):
        reason = " ".join(lost[1].split()).rstrip(".")
        helps = "fail.on.data.loss = false goes on without them, and a reset with a topic that was made anew"
        return f"records are gone that were not read yet: {reason}; {helps}"
    line = _of_python(text) or _innermost(text)
    line = _SQLSTATE.sub("", _CLASS.sub("", _JAVA.sub("", _QUERY.sub("", line.strip()))))
    line = " ".join(line.split())
    return (line if len(line) <= _LENGTH else f"{line[:_LENGTH]}...") or type(error).__name__


def _of_python(text: str) -> str | None:
    """What a traceback in the text ends with."""
    first, found, traceback = text.rpartition("Traceback (most recent call last):")
    if not found:
        return None
    if _NO_READER in traceback and first.rstrip().endswith(_ANOTHER):
        return _of_python(first.rstrip().removesuffix(_ANOTHER))
    return next((line for line in traceback.split("\n") if line.strip() and not line[0].isspace()), None)


def _innermost(text: str) -> str:
    causes = _CAUSED_BY.findall(text) or _TASK.findall(text)
    if causes:
        return str(causes[-1])
    lines = (line.removeprefix(": ") for line in text.split("\n") if line.strip())
    return next((line for line in lines if not line.startswith("An error occurred while calling")), "")


def line_in_sql(error: BaseException) -> int:
    """The line of the statement that an error is about, counted from 0; 0 if it does not say."""
    found = _AT.search(str(error))
    return max(0, int(found[1]) - 1) if found else 0
