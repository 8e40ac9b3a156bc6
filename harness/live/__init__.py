"""Your own server: a workload goes to an OpenAI-compatible endpoint, and what comes back fills the same tables."""
