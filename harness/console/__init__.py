"""The command line and the terminal: what was typed, what was meant, what can be shown."""
