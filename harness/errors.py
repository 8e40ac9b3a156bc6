"""Errors that are answers: a message for the person at the keyboard, shown without a traceback."""


class HarnessError(Exception):
    """Something the user can mend. The message says where, what is wrong and what would be right."""
