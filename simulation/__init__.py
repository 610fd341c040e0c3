"""Whole brokers in one process, in simulated time and with simulated faults.

Command line: `python -m odradek.simulation --help`. Description: docs/simulation.md.
"""
