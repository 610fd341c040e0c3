"""A transform that holds a batch while a file exists. Tests copy this module to the folder of the pipeline."""

import time
from pathlib import Path

HERE = Path(__file__).parent


def hold(frame):
    """Return the rows unchanged, but not while file `hold` exists. File `held` is created when the batch is held."""
    if (HERE / "hold").exists():
        (HERE / "held").touch()
        while (HERE / "hold").exists():
            time.sleep(0.01)
    return frame
