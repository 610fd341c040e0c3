"""Servers of a cluster on one machine.

- `child_process`: processes that end with this one
- `zookeeper_server`: ZooKeeper servers, from the jars in the pyspark wheel
- `local_directory`: the directory of a cluster on this machine
- `local_cluster`: brokers and a ZooKeeper server as processes of one command
- `start`: the command `odradek cluster start`
"""
