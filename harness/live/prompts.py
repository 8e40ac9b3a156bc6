"""Prompts to send: token ids, or a text of exactly as many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.config.server import Server
from harness.errors import HarnessError
from harness.workload.streams import prompt_tokens
from schedulers.request import Request

SPECIAL = 100  # ids below this are not used: they may be BOS, EOS or padding
CANDIDATES = 8000  # entries of the vocabulary that are tried as words
MOST_WORDS = 2000


class Ids:
    """Prompts as token ids: the trace's own, or drawn such that equal pieces of prompts are equal ids."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.low = min(SPECIAL, vocab_size // 2)
        self.size, self.seed = vocab_size - self.low, seed

    def __call__(self, request: Request) -> list[int]:
        if request.token_ids is not None:
            return [int(token) for token in request.token_ids[: request.prompt_len]]
        drawn: list[int] = (prompt_tokens(request, self.size, self.seed) + self.low).tolist()
        return drawn


class Text:
    """Prompts as text, made of words that are one token each in any order: a text has as many tokens as words.

    Args:
        tokenizer: of the server's model, as `transformers` loads it.

    Attributes:
        added: tokens that the server adds to a text (special tokens, or a chat template).
        short: how many prompts were shorter than that.
    """

    def __init__(self, tokenizer: Any, seed: int, chat: bool = False) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.words = words_of(tokenizer)
        self.added = _template_tokens(tokenizer, self.words) if chat else len(tokenizer("").input_ids)
        self.short = 0

    def __call__(self, request: Request) -> str:
        """
        Raises:
            HarnessError: the tokenizer finds another number of tokens in the text.
        """
        if request.token_ids is not None:
            return str(self.tokenizer.decode(list(request.token_ids[: request.prompt_len])))
        count = request.prompt_len - self.added
        if count < 1:
            self.short += 1
            count = 1
        drawn = prompt_tokens(request, len(self.words), self.seed)[:count]
        text = " ".join(self.words[word] for word in drawn.tolist())
        found = len(self.tokenizer(text, add_special_tokens=False).input_ids)
        if found != count:
            raise HarnessError(f"server.tokenizer: {count} words that are a token each are {found} tokens together")
        return text


def words_of(tokenizer: Any) -> Sequence[str]:
    """Words that are a single token anywhere in a text.

    Raises:
        HarnessError: there are fewer than two.
    """
    ids = range(min(len(tokenizer), CANDIDATES))
    special = set(tokenizer.all_special_ids)
    texts = dict.fromkeys(tokenizer.decode([token]).strip() for token in ids if token not in special)
    words = [text for text in texts if len(text) > 1 and text.isascii() and text.isalnum()]
    trial = tokenizer([f"{word} {word} {word}" for word in words], add_special_tokens=False).input_ids if words else []
    kept = [word for word, found in zip(words, trial, strict=True) if len(found) == 3][:MOST_WORDS]
    if len(kept) < 2:
        raise HarnessError("server.tokenizer: none of its words stays a single token in a text; send token ids "
                           "(server.tokenizer=null) if the server takes them")  # fmt: skip
    return kept


def make_prompts(server: Server, seed: int) -> Ids | Text:
    """The kind of prompts that the server accepts.

    Raises:
        HarnessError: a tokenizer is needed and not set, or can't be loaded.
    """
    if server.tokenizer is None:
        if server.api == "chat":
            raise HarnessError("server.api=chat sends text: server.tokenizer must name the model's tokenizer (a folder "
                               "or a hub name), or prompts would have no known length")  # fmt: skip
        return Ids(server.vocab_size, seed)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(server.tokenizer)
    except (OSError, ValueError, ImportError, KeyError) as error:
        why = str(error).strip().split("\n")[0]
        raise HarnessError(f"server.tokenizer={server.tokenizer} can't be loaded: {why}") from error
    return Text(tokenizer, seed, server.api == "chat")


def _template_tokens(tokenizer: Any, words: Sequence[str]) -> int:
    """Tokens that the chat template adds to a single message."""
    if not tokenizer.chat_template:
        raise HarnessError("server.api=chat: the tokenizer has no chat template, so a prompt's length can't be told")
    message = [{"role": "user", "content": f"{words[0]} {words[1]}"}]
    told = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return len(tokenizer(told, add_special_tokens=False).input_ids) - 2
