"""The whole broker in one process, in simulated time and with simulated faults.

`python -m odradek.simulation --help` says how it is run; docs/simulation.md what is simulated.
"""
