"""Input and output of commands.

- `output`: tables for people, JSON for programs
- `error_reports`: errors on standard error, as lines or as JSON
- `progress`: a progress bar for long work
- `choices`: names that options take, and the nearest ones of an unknown name
- `completions`: names that the shell completes
- `json_files`: JSON files of Kafka's tools
"""
