"""Java programs of the tests, compiled once for each content and class path into the cache of the jars."""

import hashlib
import subprocess
from pathlib import Path

from compat_tests.apache_kafka.jars import cache_directory, java, kafka_classpath, locked


def compile_program(source: Path, name: str) -> str:
    """Return the directory with the classes of a source file. `name` begins the name of the directory."""
    digest = hashlib.sha256(source.read_bytes() + kafka_classpath().encode()).hexdigest()[:10]
    directory = cache_directory() / f"{name}-{digest}"
    if not directory.exists():
        with locked(cache_directory()):
            if not directory.exists():
                part = directory.with_suffix(".part")
                compiler = Path(java()).resolve().with_name("javac")
                if not compiler.exists():
                    raise RuntimeError(f"{compiler} is missing; install a JDK: apt-get install openjdk-17-jdk-headless")
                options = ["--release", "17", "-cp", kafka_classpath(), "-d", str(part)]
                command = [str(compiler), *options, str(source)]
                subprocess.run(command, check=True, capture_output=True, timeout=300)
                part.rename(directory)
    return str(directory)
