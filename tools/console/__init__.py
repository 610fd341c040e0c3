"""The web console: pages for any Kafka cluster, served by Flask and waitress.

- `settings`: options
- `security`: host names, cross-site requests, sessions
- `cluster_pool`: bounded and cached access to the cluster
- `console`: the parts that the pages share
- `formats`: texts of numbers and times
- `assignments`: partitions of members as short texts
- `lag_history`: the lag of groups over time
- `inputs`: values that users enter
- `paging`: search, order and pages of tables
- `summaries`: data of brokers and topics
- `pipelines`: states of pipelines, from files
- `records`: records, read in bounded steps and decoded
- `pages`: the pages; `templates` and `static` have their HTML, style and script
- `app`: checks of each request, errors
- `server`: the web server
"""
