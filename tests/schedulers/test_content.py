"""Which blocks of which requests count as the same."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from schedulers.request import Request, Sequence


def seq(number: int, prompt_len: int, outputs: list[int] | None = None, **content: object) -> Sequence:
    request = Request(number, 0, prompt_len, 20, **content)  # type: ignore[arg-type]
    return Sequence(f"request {number}", request=request, outputs=outputs or [])


def shared(first: Sequence, second: Sequence, blocks: int = 8, block_size: int = 4) -> int:
    """Blocks that are the same; behind the first difference there may be none."""
    keys = (one.block_hashes(block_size, blocks) for one in (first, second))
    same = [a == b for a, b in zip(*keys, strict=True)]
    assert same == sorted(same, reverse=True)
    return sum(same)


def common(first: Sequence, second: Sequence, tokens: int = 40) -> int:
    """Leading tokens that are the same."""
    one, other = (each.token_keys(tokens)[:tokens] for each in (first, second))
    same = (one == other).all(axis=1)
    return int(same.argmin()) if not same.all() else len(same)


def test_equal_tokens_are_shared_up_to_the_first_difference() -> None:
    first, second = seq(0, 20, token_ids=list(range(20))), seq(1, 20, token_ids=[*range(10), 99, *range(11, 20)])
    assert shared(first, second, blocks=5) == 2


@pytest.mark.parametrize("kind", [np.array, lambda ids: array("i", ids), tuple, list])
def test_tokens_are_the_same_in_any_container(kind) -> None:  # type: ignore[no-untyped-def]
    assert shared(seq(0, 12, token_ids=kind(range(12))), seq(1, 12, token_ids=list(range(12))), blocks=3) == 3


@pytest.mark.parametrize("other", [1 + 2**32, 2, 1 + 2**61 - 1, 2**64 - 1])
def test_hash_ids_are_told_apart_by_all_64_bits(other: int) -> None:
    """Elsewhere ids were cut to 32 bits, and distinct prefixes became one."""
    first, second = (seq(i, 16, hash_ids=[7, value], hash_block=8) for i, value in enumerate([1, other]))
    assert shared(first, second, blocks=4) == 2


@pytest.mark.parametrize("other", [1 + 2**32, 1 + 2**61 - 1])
def test_token_ids_are_told_apart_by_all_64_bits(other: int) -> None:
    assert shared(seq(0, 4, token_ids=[1, 1, 1, 1]), seq(1, 4, token_ids=[1, 1, 1, other]), blocks=1) == 0


def test_a_hash_id_stands_for_all_blocks_of_its_piece() -> None:
    """Pieces of 512 tokens, blocks of 16: two equal pieces are 64 equal blocks."""
    first, second = (seq(i, 1200, hash_ids=[5, 6, 10 + i], hash_block=512) for i in range(2))
    assert shared(first, second, blocks=75, block_size=16) == 64


def test_a_block_over_two_pieces_is_the_same_if_both_are() -> None:
    first, second = (seq(i, 18, hash_ids=[1, 2, 3 + i], hash_block=6) for i in range(2))
    assert shared(first, second, blocks=4, block_size=4) == 3


def test_pieces_of_other_lengths_are_other_contents() -> None:
    assert shared(seq(0, 16, hash_ids=[1, 2], hash_block=8), seq(1, 16, hash_ids=[1], hash_block=16), blocks=4) == 0


def test_prompts_of_unknown_tokens_share_nothing_but_with_themselves() -> None:
    assert shared(seq(0, 16), seq(1, 16)) == 0
    assert shared(seq(0, 16), seq(0, 16)) == 8


def test_simulated_answers_belong_to_their_request() -> None:
    """Prompts of 10 equal tokens: two blocks are shared, the block with the first output is not."""
    first, second = (seq(i, 10, token_ids=list(range(10))) for i in range(2))
    assert shared(first, second) == 2
    assert shared(first, seq(0, 10, token_ids=list(range(10)))) == 8


def test_known_answers_are_contents_like_any_other() -> None:
    """An answer that continues a prompt, and a prompt that holds the same tokens."""
    first = seq(0, 10, token_ids=list(range(10)), outputs=list(range(10, 20)))
    assert shared(first, seq(1, 20, token_ids=list(range(20))), blocks=5) == 5


def test_keys_do_not_depend_on_when_they_are_asked_for() -> None:
    early = seq(0, 10, token_ids=list(range(10)))
    early.block_hashes(4, 1)
    for token in range(10, 20):
        early.outputs.append(token)
        early.block_hashes(4, (10 + len(early.outputs)) // 4)
    assert shared(early, seq(1, 20, token_ids=list(range(20))), blocks=5) == 5


def test_a_clipped_prompt_has_no_tokens_behind_its_end() -> None:
    first = seq(0, 6, token_ids=list(range(20)), outputs=[90, 91])
    assert shared(first, seq(1, 8, token_ids=[*range(6), 90, 91]), blocks=2) == 2


# ---- token by token ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.array, lambda ids: array("i", ids), tuple, list])
def test_tokens_are_shared_to_the_first_difference_in_any_container(kind) -> None:  # type: ignore[no-untyped-def]
    first, second = seq(0, 20, token_ids=kind(range(20))), seq(1, 20, token_ids=[*range(10), 99, *range(11, 20)])
    assert common(first, second, 20) == 10


@pytest.mark.parametrize("other", [1 + 2**32, 2, 1 + 2**61 - 1, 2**64 - 1])
def test_tokens_of_pieces_are_told_apart_by_all_64_bits_of_their_ids(other: int) -> None:
    first, second = (seq(i, 16, hash_ids=array("Q", [7, value]), hash_block=8) for i, value in enumerate([1, other]))
    assert common(first, second, 16) == 8


@pytest.mark.parametrize("other", [1 + 2**32, 1 + 2**61 - 1])
def test_tokens_are_told_apart_by_all_64_bits(other: int) -> None:
    assert common(seq(0, 4, token_ids=[1, 1, 1, 1]), seq(1, 4, token_ids=[1, 1, 1, other]), 4) == 3


def test_a_last_piece_that_is_not_full_is_the_same_if_its_id_is() -> None:
    """Pieces of 8: 12 tokens of two equal pieces; what follows the shorter prompt is its own answer."""
    first, same, other = (
        seq(i, length, hash_ids=[1, last], hash_block=8) for i, (length, last) in enumerate([(12, 2), (16, 2), (16, 3)])
    )
    assert common(first, same) == 12
    assert common(first, other) == 8


def test_a_piece_is_no_token_and_no_piece_of_another_length() -> None:
    assert common(seq(0, 8, hash_ids=[5], hash_block=8), seq(1, 8, token_ids=[5] * 8)) == 0
    assert common(seq(0, 8, hash_ids=[5], hash_block=8), seq(1, 8, hash_ids=[5], hash_block=16)) == 0


def test_unknown_prompts_and_simulated_answers_are_a_requests_own() -> None:
    assert common(seq(0, 16), seq(1, 16)) == 0
    assert common(seq(0, 16), seq(0, 16)) == 40
    first, second = (seq(i, 10, token_ids=list(range(10))) for i in range(2))
    assert common(first, second) == 10
    assert common(first, seq(0, 10, token_ids=list(range(10)))) == 40
    assert common(seq(0, 16), seq(1, 16, token_ids=[-1] * 16)) == 0


def test_known_answers_are_tokens_like_any_other_whenever_they_are_asked_for() -> None:
    early = seq(0, 10, token_ids=list(range(10)))
    early.token_keys(3)
    for token in range(10, 20):
        early.outputs.append(token)
        early.token_keys(10 + len(early.outputs))
    late = seq(0, 10, token_ids=list(range(10)), outputs=list(range(10, 20)))
    whole = seq(1, 20, token_ids=list(range(20)))
    assert common(early, whole, 20) == common(late, whole, 20) == 20


def test_a_clipped_prompt_has_its_answer_behind_its_end() -> None:
    first = seq(0, 6, token_ids=list(range(20)), outputs=[90, 91])
    assert common(first, seq(1, 8, token_ids=[*range(6), 90, 91]), 8) == 8


def test_tokens_that_others_may_have_too() -> None:
    assert seq(0, 6).common_tokens == 0
    assert seq(0, 6, hash_ids=[1], hash_block=8, outputs=[3]).common_tokens == 6
    assert [seq(0, 6, token_ids=list(range(6)), outputs=[3] * n).common_tokens for n in (0, 15, 16, 35)] == [
        6,
        6,
        22,
        38,
    ]
