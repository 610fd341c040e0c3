"""`python -m odradek.simulation`."""

import sys

from odradek.simulation.cli import main

sys.exit(main(sys.argv[1:]))
