"""Asks a server, before it is measured, for its engine, its version, its models and their longest sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.config.server import Server
from harness.errors import HarnessError
from harness.live.client import HEAD, why_none
from harness.live.stream import count_of, quoted
from harness.lookup import nearest

# Endpoints that tell engines apart: each answers with the version of one engine only. (engine, path, key of the answer)
VERSIONS = (
    ("vLLM", "/version", "version"),
    ("SGLang", "/server_info", "version"),
    ("SGLang", "/get_server_info", "version"),
    ("llama.cpp", "/props", "build_info"),
    ("TGI", "/info", "version"),
)
# Engines that do something else than the request asks for.
TEXT_ONLY = ("TGI",)  # `prompt` is a text or a list of texts, never token ids
NO_IGNORE_EOS = ("TGI",)  # accepts `ignore_eos` and ignores it
ONE_ANSWER = ("TGI",)  # accepts `n` and ignores it


@dataclass(frozen=True)
class ServerInfo:
    """What a server reports about itself.

    Attributes:
        engine: vLLM, SGLang, llama.cpp, TGI, or "" if unknown.
        version: of the engine.
        model: the `model` of every request.
        max_model_len: longest sequence in tokens; None if the server does not report it.
    """

    engine: str
    version: str
    model: str
    max_model_len: int | None

    @property
    def name(self) -> str:
        """``vLLM 0.32.0``."""
        return f"{self.engine} {self.version}".strip() or "a server"


async def ask(session: aiohttp.ClientSession, server: Server) -> ServerInfo:
    """The server's engine, version, model and longest sequence.

    Raises:
        HarnessError: no answer, a refused key, or no such model.
    """
    models = await _models(session, server)
    named = [str(model.get("id")) for model in models]
    model = server.model
    if model is None:
        if len(named) != 1:
            raise HarnessError(
                f"server.model is not set, and {server.root} has {', '.join(named) or 'no list of models'}"
            )
        model = named[0]
    elif named and model not in named:
        raise HarnessError(f"server.model={model}: {server.root} has no such model{nearest(model, named)}; "
                           f"there are {', '.join(named[:10])}")  # fmt: skip
    entry = next((entry for entry in models if entry.get("id") == model), {})
    engine, version, told = await _engine(session, server)
    slot, meta = told.get("default_generation_settings"), entry.get("meta")  # of llama.cpp: a request has a slot's room
    room = slot.get("n_ctx") if isinstance(slot, dict) else None
    trained = meta.get("n_ctx_train") if isinstance(meta, dict) else None
    longest = count_of(entry.get("max_model_len")) or count_of(room) or count_of(trained)
    return ServerInfo(engine, version, model, longest)


async def _models(session: aiohttp.ClientSession, server: Server) -> list[dict[str, Any]]:
    url, limit = f"{server.root}/v1/models", aiohttp.ClientTimeout(total=30)
    try:
        async with session.get(url, headers=server.headers(url), timeout=limit) as response:
            if response.status in (401, 403):
                what = "refuses the key in" if server.key else "wants a key, and there is none in"
                raise HarnessError(f"{server.root} {what} the environment variable {server.api_key_env} "
                                   f"(server.api_key_env): HTTP {response.status}")  # fmt: skip
            if response.status >= 500:  # llama.cpp, while it loads its model
                said = quoted(server.hide((await response.content.read(HEAD)).decode("utf-8", "replace")))
                raise HarnessError(f"{server.root} is there but not ready: HTTP {response.status}: {said}")
            if response.status != 200:
                return []  # some endpoints have no such list
            body = await response.json(content_type=None)
    except aiohttp.ClientConnectorError as error:
        raise HarnessError(f"server.url={server.url}: nobody answers there: {why_none(error)}") from None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise HarnessError(f"server.url={server.url}: no answer from {url}: {error or type(error).__name__}") from None
    except ValueError:
        return []
    data = body.get("data") if isinstance(body, dict) else None
    return [entry for entry in data or [] if isinstance(entry, dict)]


async def _engine(session: aiohttp.ClientSession, server: Server) -> tuple[str, str, dict[str, Any]]:
    """(engine, version, the whole answer of that endpoint); empty if no path of `VERSIONS` answers."""
    for engine, path, key in VERSIONS:
        url, limit = server.root + path, aiohttp.ClientTimeout(total=10)
        try:
            async with session.get(url, headers=server.headers(url), timeout=limit) as response:
                body = await response.json(content_type=None) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            continue
        if isinstance(body, dict) and body.get(key):
            return engine, str(body[key]), body
    return "", "", {}


def refuse(about: ServerInfo, server: Server, answers: int) -> None:
    """Refuse settings that the engine would silently ignore.

    Args:
        answers: the largest `n` of any request.

    Raises:
        HarnessError: there is such a setting; the message names the key to set instead.
    """
    engine = about.engine
    if engine in TEXT_ONLY and server.tokenizer is None:
        raise HarnessError(f"{engine} takes no token ids: set server.tokenizer to its model's, for texts as long")
    if engine in NO_IGNORE_EOS and server.ignore_eos:
        raise HarnessError(f"{engine} has no ignore_eos, so answers end when the model ends them: set "
                           "server.ignore_eos=false, and compare tokens, not requests")  # fmt: skip
    if engine in ONE_ANSWER and answers > 1:
        raise HarnessError(f"{engine} gives one answer to a request: workload.n={answers} can't be asked of it")
