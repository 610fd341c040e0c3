"""`python -m odradek` and the `odradek` command."""

import os
import signal
import sys

_TERMINATED = 128 + signal.SIGTERM


def main() -> int:
    """Run the command line; return the exit code."""
    if os.getpid() == 1:
        # The kernel drops a signal without a handler for process 1, as in a container. The broker sets its own later.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
    # `start` is separate because the broker starts faster without the imports of the user tools.
    if sys.argv[1:2] == ["start"]:
        from odradek.server.cli import main as run
    else:
        from odradek.tools.cli.main import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
