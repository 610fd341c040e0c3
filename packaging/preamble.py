"""Run by shiv in the single-file executable, before the command.

Without PATH in the environment Python does not find itself, and child processes such as that of compaction cannot be
started.
"""

import os
import sys

if not sys.executable:
    sys.executable = os.path.realpath("/proc/self/exe")
