"""What the configuration says of the server that is measured (`device=server`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import SplitResult, urlsplit

from harness.errors import HarnessError

LEAST_SEEN = 4  # letters of a key that may be seen, where a quotation ends within it


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
            HarnessError: no URL, or one that is none or holds a password; a key that can't be sent.
        """
        known = {item.name for item in fields(cls)}
        server = cls(**{name: value for name, value in keys.items() if name in known})
        parts = urlsplit(server.url or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HarnessError(
                f"server.url={server.url}: it must be the server's address, such as http://localhost:8000"
            )
        if parts.password or parts.username or parts.query or parts.fragment:
            raise HarnessError("server.url holds a user or a password, or a query, which files would show: put the key "
                               "into the environment variable that server.api_key_env names")  # fmt: skip
        if port_of(parts) == 0:
            raise HarnessError(f"server.url={server.url}: a port is a number from 1 to 65535")
        if parts.path.rstrip("/").endswith("/completions"):
            raise HarnessError(f"server.url={server.url}: leave the endpoint off, server.api says which it is")
        if server.api_key_env and not re.fullmatch(r"[A-Za-z_]\w*", server.api_key_env):
            raise HarnessError("server.api_key_env must be the name of an environment variable, such as "
                               "OPENAI_API_KEY, and not the key itself, which files would show")  # fmt: skip
        if not (server.key.isascii() and server.key.isprintable()):
            raise HarnessError(f"the environment variable {server.api_key_env} (server.api_key_env) holds what no key "
                               "does: a line break, or letters that are not ASCII")  # fmt: skip
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
        return os.environ.get(self.api_key_env or "", "").strip()

    def headers(self, url: str) -> dict[str, str]:
        """With the key, for addresses of this server alone: its metrics may be somewhere else."""
        return {"Authorization": f"Bearer {self.key}"} if self.key and url.startswith(f"{self.root}/") else {}

    def hide(self, text: str) -> str:
        """`text` without the key, which servers like to quote, nor its beginning where a quotation ends."""
        key = self.key
        text = text.replace(key, "***") if key else text
        for length in range(len(key) - 1, LEAST_SEEN, -1):
            text = text.replace(f"{key[:length]}…", "***…")
        return text


def port_of(parts: SplitResult) -> int | None:
    """The port of an address; 0 for one that is none."""
    try:
        return parts.port
    except ValueError:
        return 0
