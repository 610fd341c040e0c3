"""`python -m odradek` and the `odradek` command."""

import sys


def main() -> int:
    """Runs the command line; returns the exit code."""
    from odradek.server.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
