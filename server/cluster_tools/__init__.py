"""Commands for clusters, and servers of a cluster on one machine.

- `client_login`: the login of a command at a broker
- `command_config`: the security of a client, as Kafka's tools take it
- `wire_client`: a blocking client for one broker
- `status`: the state of a cluster as its clients see it
- `child_process`: processes that end with this one
- `zookeeper_server`: ZooKeeper servers, from the jars in the pyspark wheel
- `local_directory`: the directory of a cluster on this machine
- `local_cluster`: brokers and a ZooKeeper server as processes of one command
- `cli`: the commands `odradek cluster start` and `odradek cluster status`
"""
