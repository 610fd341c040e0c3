"""The load of new connections: each is made, authenticated and closed.

    python -m benchmarks.security.handshakes '{"port": 9093, "seconds": 3, "security": [...]}'

The output is the number of connections. Two threads connect, so that one waits for the broker while the other computes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from benchmarks import wire
from benchmarks.connections import Security, connect

THREADS = 2


def count_connections(port: int, security: Security, seconds: float) -> int:
    """Connect for that time. Raises the first error of a thread."""
    end_s = time.monotonic() + seconds
    counts = [0] * THREADS
    errors: list[Exception] = []

    def work(index: int) -> None:
        try:
            while time.monotonic() < end_s and not errors:
                connect("127.0.0.1", port, security).close()
                counts[index] += 1
        except (OSError, wire.WireError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts)


if __name__ == "__main__":
    fields: dict[str, Any] = json.loads(sys.argv[1])
    try:
        print(count_connections(fields["port"], Security(*fields["security"]), fields["seconds"]))
    except (OSError, wire.WireError) as problem:
        sys.exit(f"{type(problem).__name__}: {problem}")
