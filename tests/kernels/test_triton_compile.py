"""The compile gate passes, and it would not pass what it is there to stop. No GPU needed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")  # and not imported here

SPILLING = """
from kvlab_kernels import compile_gate, triton_decode
triton_decode.decode_config = lambda *shape: triton_decode.DecodeConfig(64, True, 1, 3)
found = compile_gate.inspect(compile_gate.decode_build(1, 128, compile_gate.torch.float16, 16), 90)
assert found.spilled and "spills" in found.problems and "no tensor cores" not in found.problems, found
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: this one may have imported the kernels for the interpreter."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_quick_gate_passes() -> None:
    done = run("-m", "kvlab_kernels.compile_gate", "--quick", "--arch", "90")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout


def test_a_spilling_build_is_caught() -> None:
    done = run("-c", SPILLING)
    assert done.returncode == 0, done.stderr
