"""`python -m odradek.simulation`."""

import sys

from odradek.simulation.simulate import main

sys.exit(main(sys.argv[1:]))
