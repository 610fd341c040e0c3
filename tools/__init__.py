"""User tools: clients of any Kafka cluster, of Odradek or Apache Kafka. The broker imports none of them.

- `kafka`: connection profiles, security, and a client for the calls of administrators
- `records`: records, read and written
- `logs`: log directories, read offline
- `console`: the web console
- `doctor`: checks of a running broker and its machine
- `cli`: the command line `odradek`
"""
