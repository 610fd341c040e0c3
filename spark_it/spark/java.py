"""Java exceptions that made a call of the JVM or a Spark job fail."""

from collections.abc import Iterator
from typing import Any

_LONGEST = 20

_DOWN = (
    "java.io.IOException",
    "java.io.UncheckedIOException",
    "io.delta.exceptions.DeltaConcurrentModificationException",
    "org.apache.iceberg.exceptions.CommitFailedException",
    "org.apache.iceberg.exceptions.CommitStateUnknownException",
    "org.apache.iceberg.exceptions.RESTException",
    "org.apache.iceberg.exceptions.RuntimeIOException",
)
# A Python worker that died, and a file of the source that is gone.
_NOT_DOWN = ("java.io.EOFException", "java.io.FileNotFoundException")


def is_javas(error: BaseException) -> bool:
    return _thrown(error) is not None


def _thrown(error: BaseException) -> Any:
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def causes(error: BaseException) -> Iterator[Any]:
    """The throwable and its causes, outermost first; nothing for an error that is not Java's."""
    cause = _thrown(error)
    for _ in range(_LONGEST):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()


def kinds(throwable: Any) -> tuple[str, ...]:
    """The names of a throwable's class and of its ancestors."""
    found, kind = [], throwable.getClass()
    while kind is not None:
        found.append(str(kind.getName()))
        kind = kind.getSuperclass()
    return tuple(found)


def what_is_down(error: BaseException, place: str) -> str | None:
    """What a file system or a catalog said, when that is why it failed and it may be better later; else None.

    `place` is a path that no source has, so that a file which does not exist is the sink's.
    """
    for cause in causes(error):
        names = kinds(cause)
        message = str(cause.getMessage() or names[0]).split("\n")[0]
        if any(name in _NOT_DOWN for name in names) and place not in message:
            return None
        if any(name in _DOWN for name in names):
            return message
    return None
