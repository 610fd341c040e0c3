"""Archives of the classes that a kind of Java process loads, which halve the start time of such processes.

An archive is created once for each Java version and class path, and kept beside the jars. A JVM ignores an archive that
it cannot use; `-Xlog:disable` suppresses its warning in the output of a tool.
"""

import contextlib
import functools
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator

from compat_tests.apache_kafka.jars import cache_directory, java, locked

FROM_OUTSIDE = "JDK_JAVA_OPTIONS"
Options = tuple[str, ...]


@functools.cache
def options(kind: str, classpath: str, run: Callable[[Options], object]) -> Options:
    """Return JVM options for the archive of a kind. If there is none yet, `run` runs such a process to its regular end
    with the given options."""
    with _no_options_from_outside():
        version = subprocess.run([java(), "-version"], capture_output=True, timeout=60).stderr
        digest = hashlib.sha256(version + classpath.encode()).hexdigest()[:10]
        archive = cache_directory() / f"{kind}-{digest}.jsa"
        if not archive.exists():
            with locked(cache_directory()):
                if not archive.exists():
                    made = archive.with_suffix(".part")
                    made.unlink(missing_ok=True)
                    run((f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable"))
                    if not made.exists():
                        return ()
                    made.rename(archive)
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")


@contextlib.contextmanager
def _no_options_from_outside() -> Iterator[None]:
    """Remove JVM options from the environment: a JVM that is started with an archive does not create another."""
    saved = os.environ.pop(FROM_OUTSIDE, None)
    try:
        yield
    finally:
        if saved is not None:
            os.environ[FROM_OUTSIDE] = saved
