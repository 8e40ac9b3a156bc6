"""The replay: a workload, fed to engines under a clock."""
