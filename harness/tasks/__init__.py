"""What a job may do besides serving a workload; `task` names one."""
