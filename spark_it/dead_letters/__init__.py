"""Dead letters: records that failed, in a topic, with Kafka Connect's headers.

- `headers`: Kafka Connect's headers, and the errors that they describe
- `bad_records`: bad records that stop a pipeline, encoded in the text of Spark's errors
- `topic`: creation of the dead-letter topic
- `writer`: writes dead letters for sinks that do not write them in a transaction
- `replay`: writes dead letters back to the topics that they were read from
- `replay_position`: the file with the position of a replay
"""
