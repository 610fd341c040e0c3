"""Commands of documentation pages, run as written, and the files that are installed: wheel, units and images."""
