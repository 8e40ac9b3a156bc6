"""How many random cases the tests try: a third of them by default, all with ``KVLAB_THOROUGH=1``."""

import os

THOROUGH = os.environ.get("KVLAB_THOROUGH") == "1"


def cases(count: int) -> int:
    """So many of `count` random cases."""
    return count if THOROUGH else -(-count // 3)
