"""Checks of a running cluster and of a broker's machine, for `odradek doctor`.

- `findings`: the result of a check
- `reachability`: advertised addresses of the brokers
- `state`: controller, partitions, topics
- `brokers`: each broker: log directories, APIs, clock, metrics
- `processes`: the process of a broker on this machine
- `mounts`: file systems
- `clock_sync`: the kernel's state of the clock
- `machine`: the machine of a broker: open files, disks, memory, clock
- `diagnosis`: all checks
"""
