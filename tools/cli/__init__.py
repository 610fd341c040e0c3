"""The command line `odradek`, of typer commands.

- `main`: the entry, errors and exit codes
- `registry`: the list of commands and their modules, which are imported only for their commands
- `groups`: declaration of the commands of a group, with the options that all of them have
- `session`: what a command runs with: its cluster, its output, confirmation
- `output`: tables for people, JSON for programs
- `error_reports`: errors on standard error, as lines or as JSON
- `choices`: names that options take, and the nearest ones of an unknown name
- `completions`: names that the shell completes
- `config_changes`: a change of configurations, with a preview
- `topics`: `odradek topic`
- `json_files`: JSON files of Kafka's tools
- `partitions`: `odradek partition`
- `reassignments`: `odradek partition reassign`
- `consumer_groups`: `odradek group`
- `offset_reset`: `odradek group reset`
- `records`: `odradek record`; `consume_records` and `produce_records` have its commands, `record_options` what both
  have
- `configs`: `odradek config`
- `property_rows`: properties of Odradek as JSON
- `brokers`: `odradek broker`
- `features`: `odradek cluster features`
- `transactions`: `odradek transaction`
- `store_options`: options of commands that can use the store of a stopped broker
- `users`: `odradek user`
- `acls`: `odradek acl`
- `quotas`: `odradek quota`
- `tokens`: `odradek token`
- `certificates`: `odradek tls`
- `reference`: the list of commands in docs/cli.md
- `pipelines`: `odradek pipeline`
- `clusters`: `odradek cluster`
- `logs`: `odradek log`
- `web_console`: `odradek console`
- `doctor`: `odradek doctor`
- `progress`: a progress bar for long work
"""
