"""What the configuration says of the server that is measured (`device=server`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from harness.errors import HarnessError


@dataclass(frozen=True)
class Server:
    """The keys `server.…` of `experiments/device/server.yaml`, which says what they mean."""

    url: str
    model: str | None = None
    api: str = "completions"
    tokenizer: str | None = None
    vocab_size: int = 2000
    ignore_eos: bool = True
    warmup: int = 1
    timeout_s: float = 600.0
    gone_s: float = 10.0
    max_connections: int | None = None
    api_key_env: str = "OPENAI_API_KEY"
    metrics: str | None = "auto"
    metrics_s: float = 1.0
    extra_body: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Server:
        """From the section `server` of a configuration.

        Raises:
            HarnessError: no URL, or one that is none or holds a password.
        """
        known = {item.name for item in fields(cls)}
        server = cls(**{name: value for name, value in keys.items() if name in known})
        parts = urlsplit(server.url or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HarnessError(
                f"server.url={server.url}: it must be the server's address, such as http://localhost:8000"
            )
        if parts.password or parts.username:
            raise HarnessError("server.url holds a user or a password, which files would show: put the key into the "
                               "environment variable that server.api_key_env names")  # fmt: skip
        return server

    @property
    def root(self) -> str:
        """``http://host:8000``, without the `/v1` that clients are often given."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        return f"{self.root}/v1/{'chat/completions' if self.api == 'chat' else 'completions'}"

    @property
    def metrics_url(self) -> str | None:
        """Where the engine's Prometheus metrics are."""
        return f"{self.root}/metrics" if self.metrics == "auto" else self.metrics

    @property
    def key(self) -> str:
        """The API key; it is looked up when it is needed and kept nowhere."""
        return os.environ.get(self.api_key_env, "")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def hide(self, text: str) -> str:
        """`text` without the key: servers like to quote it."""
        return text.replace(self.key, "***") if self.key else text
