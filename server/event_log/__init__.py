"""The broker's own log: events of the standard library's logging, as lines on standard output.

- `text_lines`: lines for people
- `json_lines`: lines for programs (`log.format=json`)
- `journal_lines`: lines with a priority, for the journal of systemd
- `request_log`: slow requests, or all of them, with the times of their stages
- `setup`: levels, and the destination of all events
"""
