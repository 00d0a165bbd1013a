"""What else a model might have said: the likeliest other words at every place of a sentence."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from xlan.decoding.step import IMPOSSIBLE, EncodedT, StateT, Stepper
from xlan.errors import DecodingError
from xlan.types import SpecialIds


def alternatives(
    model: Stepper[EncodedT, StateT],
    encoded: EncodedT,
    special: SpecialIds,
    ids: Tensor,
    *,
    count: int,
    without: Collection[int] = (),
) -> tuple[Tensor, Tensor]:
    """Follow one sentence per image and find, at every step, the likeliest words besides the chosen one.

    Args:
        model: the model that is asked.
        encoded: B images.
        special: ids with a meaning of their own.
        ids: `[B, T]` the sentences as emitted, without `bos`; after its end a row's results mean nothing.
        count: alternatives per place.
        without: ids never to name.

    Returns:
        `[B, T, count]` ids and `[B, T, count]` log-probabilities, from likelier to less likely.
    """
    most = model.vocab_size - len(set(without)) - 1
    if not 1 <= count <= most:
        raise DecodingError(f"count: expected 1 to {most} alternatives, got {count}")
    state = model.start(encoded)
    banned = torch.tensor(sorted(set(without)), dtype=torch.int64, device=ids.device)
    tokens = torch.full_like(ids[:, 0], special.bos)
    found: list[tuple[Tensor, Tensor]] = []
    for chosen in ids.unbind(1):
        log_probs, state = model.step(tokens, state)
        others = log_probs.index_fill(1, banned, IMPOSSIBLE)
        others = others.scatter(1, chosen.unsqueeze(1), IMPOSSIBLE)
        top = others.topk(count, dim=1)
        found.append((top.indices, top.values))
        tokens = chosen
    return torch.stack([i for i, _ in found], 1), torch.stack([p for _, p in found], 1)
