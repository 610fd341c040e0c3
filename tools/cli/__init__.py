"""The command line `odradek`, of typer commands.

- `main`: the entry, errors and exit codes
- `registry`: the list of commands and their modules, which are imported only for their commands
- `groups`: declaration of the commands of a group, with the options that all of them have
- `session`: what a command runs with: its cluster, its output, confirmation
- `terminal`: input and output of commands
- `cluster`: `odradek cluster`, `broker`, `topic`, `partition`, `config`
- `clients`: `odradek record`, `group`, `transaction`, `quota`
- `security`: `odradek user`, `acl`, `token`, `tls`
- `logs`: `odradek log`
- `pipelines`: `odradek pipeline`
- `web_console`: `odradek console`
- `doctor`: `odradek doctor`
- `reference`: the list of commands in docs/cli.md
"""
