"""What the card itself says during a run: utilisation, memory, power, energy, by NVML."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np


class NvmlSampler:
    """Samples the card in a thread while it is entered; `facts` afterwards.

    A card without NVML, or a counter that it lacks, leaves a null and a reason, never a 0.

    Args:
        index: the card.
        interval_s: time between samples.
    """

    def __init__(self, index: int = 0, interval_s: float = 0.1) -> None:
        self.index = index
        self.interval_s = interval_s
        self.reason: str | None = None
        self._samples: list[tuple[float, ...]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> NvmlSampler:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml, self._card = pynvml, pynvml.nvmlDeviceGetHandleByIndex(self.index)
            self._sample()
        except Exception as error:
            self.reason = f"NVML: {error}"
            return self
        self._started, self._energy_start = time.perf_counter(), self._read_energy()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._seconds, self._energy_end = time.perf_counter() - self._started, self._read_energy()
        self._nvml.nvmlShutdown()

    def facts(self, tokens: int | None) -> dict[str, Any]:
        """Means over the run; energy from the card's own counter if it has one, else power × time.

        Args:
            tokens: output tokens of the run, for energy per token.
        """
        if self._thread is None:
            return {"gpu_utilization_pct": None, "gpu_note": self.reason}
        utilization, memory, power = np.array(self._samples).mean(axis=0).tolist()
        joules = power * self._seconds
        if self._energy_start is not None and self._energy_end is not None:
            joules = (self._energy_end - self._energy_start) / 1e3
        return {
            "gpu_utilization_pct": utilization,
            "gpu_memory_used_gib": memory / 2**30,
            "gpu_power_w": power,
            "gpu_energy_j": joules,
            "gpu_energy_per_output_token_j": joules / tokens if tokens else None,
            "gpu_samples": len(self._samples),
            "gpu_note": self.reason,
        }

    def _loop(self) -> None:
        while not self._stop.wait(self.interval_s):
            try:
                self._sample()
            except Exception as error:
                self.reason = f"NVML: {error}"
                return

    def _sample(self) -> None:
        utilization = self._nvml.nvmlDeviceGetUtilizationRates(self._card).gpu
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._card).used
        power = self._nvml.nvmlDeviceGetPowerUsage(self._card) / 1e3
        self._samples.append((float(utilization), float(memory), power))

    def _read_energy(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card))
        except Exception:
            return None
