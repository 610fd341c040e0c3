"""`odradek cluster status`, run with the properties of a client."""

import subprocess
import sys
from pathlib import Path

from odradek.testing_cluster import OdradekCluster


def show_status(cluster: OdradekCluster, file: Path, properties: str) -> subprocess.CompletedProcess[str]:
    """Write the properties to a file, and ask one broker of the cluster."""
    file.write_text(properties)
    command = [sys.executable, "-m", "odradek", "cluster", "status", "--command-config", str(file)]
    server = ["--bootstrap-server", cluster.bootstrap_servers.partition(",")[0]]
    return subprocess.run([*command, *server], capture_output=True, text=True, timeout=120, check=False)
