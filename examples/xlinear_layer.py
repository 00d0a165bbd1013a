"""X-Linear attention as a layer in a model that captions nothing.

    python examples/xlinear_layer.py

Each example is a heap of cards, each with a colour and a number. The question: which number is on the card of a given
colour? The model looks at all cards through one attention layer and a linear layer. X-Linear attention and the
conventional one (Eq. 1 of the paper) take turns; both are used in two moves, `project` and a call.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F

from xlan import ConventionalAttention, XLinearAttention

COLOURS, NUMBERS, WIDTH = 8, 10, 32


class Reader(nn.Module):
    """A question about a heap of cards → logits of the answer."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.colours = nn.Embedding(COLOURS, WIDTH)
        self.numbers = nn.Embedding(NUMBERS, WIDTH)
        self.attention = attention
        self.answer = nn.Linear(width, NUMBERS)

    def forward(self, colours: torch.Tensor, numbers: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """Cards `[B, N]` and the colour asked for `[B]` → logits `[B, NUMBERS]`."""
        cards = self.colours(colours) + self.numbers(numbers)
        cache = self.attention.project(cards)  # once per heap, however many questions follow
        attended = self.attention(self.colours(asked), cache)
        return self.answer(attended.feature)


def heaps(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`count` heaps in which every colour occurs once: colours, numbers, the colour asked for, the answer."""
    colours = torch.rand(count, COLOURS).argsort(1)
    numbers = torch.randint(NUMBERS, (count, COLOURS))
    asked = torch.randint(COLOURS, (count,))
    return colours, numbers, asked, numbers[colours == asked[:, None]]


def train(model: Reader, steps: int) -> float:
    """Train; returns the share of right answers on new heaps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        colours, numbers, asked, right = heaps(64)
        loss = F.cross_entropy(model(colours, numbers, asked), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.inference_mode():
        colours, numbers, asked, right = heaps(1000)
        return float((model(colours, numbers, asked).argmax(1) == right).float().mean())


def main(arguments: list[str] | None = None) -> int:
    """Train both; returns the exit status."""
    parser = argparse.ArgumentParser(description="X-Linear attention as a layer, beside conventional attention.")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(arguments)
    layers = {
        "X-Linear attention": lambda: XLinearAttention(
            WIDTH, bilinear_dim=WIDTH, hidden_dim=WIDTH, activation="celu", normalise=True, bias=True
        ),
        "conventional attention": lambda: ConventionalAttention(WIDTH, WIDTH, hidden_dim=WIDTH),
    }
    print(f"answers by chance: {1 / NUMBERS:.0%}")
    for name, build in layers.items():
        torch.manual_seed(0)
        right = train(Reader(build(), WIDTH), options.steps)
        print(f"{name}: {right:.0%} right after {options.steps} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
