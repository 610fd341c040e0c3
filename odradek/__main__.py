"""`python -m odradek` and the `odradek` command."""

import sys


def main() -> int:
    """Run the command line; return the exit code."""
    # `start` is separate because the broker starts faster without the imports of the user tools.
    if sys.argv[1:2] == ["start"]:
        from odradek.server.cli import main as run
    else:
        from odradek.tools.cli.main import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
