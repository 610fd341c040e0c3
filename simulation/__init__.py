"""The whole broker in one process and in simulated time, with simulated faults. `python -m odradek.simulation --help`."""
