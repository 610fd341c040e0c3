"""`python -m odradek` and the `odradek` command."""

import sys


def main() -> int:
    """Run the command line; return the exit code."""
    from odradek.server.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
