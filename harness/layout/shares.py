"""How the devices of a tensor-parallel model share what it keeps."""

from __future__ import annotations

from harness.errors import HarnessError


def share(size: int, devices: int, what: str = "channels of its recurrent layers") -> int:
    """What each device holds of heads or channels that are never copied.

    Raises:
        HarnessError: the devices can't share them evenly.
    """
    if size % devices:
        raise HarnessError(f"device.tensor_parallel={devices}: the model's {size} {what} can't be shared out evenly")
    return size // devices


def share_of_heads(heads: int, devices: int) -> int:
    """How many KV heads each device holds: whole ones, and never none; with more devices than heads, several hold one.

    Raises:
        HarnessError: some device would hold another number of them.
    """
    return 1 if devices % heads == 0 else share(heads, devices, "KV heads")
