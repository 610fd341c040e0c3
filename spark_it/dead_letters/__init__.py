"""Dead letters: records that failed, in a topic, with Kafka Connect's headers.

- `headers`: Kafka Connect's headers, and the failures that they describe
- `bad_records`: bad records that stop a pipeline, encoded in the text of Spark's errors
- `topic`: creation of the dead-letter topic
- `writer`: the writer of dead letters for sinks that do not write them in a transaction
- `replay`: the command that writes dead letters back to the topics from which they were read
- `replay_position`: the file with the position of a replay
"""
