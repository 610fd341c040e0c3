"""`python -m odradek.spark_it`, which is `odradek pipeline`."""

import sys

from odradek.spark_it.cli import main

if __name__ == "__main__":
    sys.exit(main())
