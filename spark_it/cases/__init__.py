"""Cases of a pipeline's file (`[[test]]`): given rows in, expected rows out.

- `runner`: runs cases through real streaming, with the pipeline's plan
- `inputs`: given rows as files and as the frames that sources return
- `rows`: rows as JSON, and comparison of expected rows with actual ones
"""
