"""Java exceptions in errors of JVM calls and Spark jobs."""

from collections.abc import Iterator
from typing import Any

_MAX_CAUSES = 20

_TRANSIENT = (
    "java.io.IOException",
    "java.io.UncheckedIOException",
    "io.delta.exceptions.DeltaConcurrentModificationException",
    "org.apache.iceberg.exceptions.CommitFailedException",
    "org.apache.iceberg.exceptions.CommitStateUnknownException",
    "org.apache.iceberg.exceptions.RESTException",
    "org.apache.iceberg.exceptions.RuntimeIOException",
)
# A Python worker that exited, and a deleted file of the source.
_PERMANENT = ("java.io.EOFException", "java.io.FileNotFoundException")


def is_java_error(error: BaseException) -> bool:
    return _get_throwable(error) is not None


def _get_throwable(error: BaseException) -> Any:
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def iter_causes(error: BaseException) -> Iterator[Any]:
    """Yield the throwable of an error and its causes, outermost first; nothing if Java did not throw the error."""
    cause = _get_throwable(error)
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()


def list_class_names(throwable: Any) -> tuple[str, ...]:
    """Return the names of a throwable's class and its superclasses."""
    names, kind = [], throwable.getClass()
    while kind is not None:
        names.append(str(kind.getName()))
        kind = kind.getSuperclass()
    return tuple(names)


def find_unavailable_reason(error: BaseException, place: str) -> str | None:
    """Return the message if a file system or catalog is temporarily unavailable; None for any other error.

    `place` is the sink's path; a missing file counts only if the message contains it, because other files belong to
    sources.
    """
    for cause in iter_causes(error):
        names = list_class_names(cause)
        message = str(cause.getMessage() or names[0]).split("\n")[0]
        if any(name in _PERMANENT for name in names) and place not in message:
            return None
        if any(name in _TRANSIENT for name in names):
            return message
    return None
