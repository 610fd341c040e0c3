"""Whole brokers in one process, in simulated time and with simulated faults.

Command line: `python -m odradek.simulation --help`. Description: docs/simulation.md.

- `cli`: the command line
- `run`: the run of one seed
- `phases`: waits and settings of all runs
- `cluster`: runs with several brokers
- `scenario`: configuration, topics, network and faults of a seed
- `world`: the simulated world
- `api`: the interface of the world for clients
- `setup`: topics before the clients start
- `fault_schedule`: the schedule of a run's faults
- `faults`: the faults of a run, and the operator
- `machine`: the simulated machines of brokers, the network and ZooKeeper
- `clients`: simulated clients
- `history`: the operations of clients and their outcomes
- `topic_lives`: topics that are deleted and created again
- `unclean_elections`: elections that may lose records
- `reads`: reads of whole partitions
- `checks`: the checker of histories
- `audits`: checks of running brokers
- `safeguards`: safeguards of the broker that can be disabled
- `tracing`: one-line descriptions of messages
"""
