"""The task of `shakespeare`: what speakers say as windows of characters, a small GPT, and its loss at each position."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed.data import DataSet, load
from sketchfed.errors import InputError

CONTEXT = 64
"""The number of characters that the model sees."""
HELD = ("test", "validation")


def speakers(*, shortest: int = 8_000, held: str = "test") -> DataSet:
    """What everybody says who says at least `shortest` characters. A row is a window of characters and the one that follows.

    Each speaker is a client. The last tenth of each text is held out for testing. With `held = "validation"` that tenth is not
    used at all, and the tenth before it is held out. Training windows begin at every character; held-out windows do not
    overlap. No window reaches from one part into another.
    """
    if held not in HELD:
        raise InputError(f"held must be one of {', '.join(HELD)}, got {held!r}.")
    data = load("shakespeare", window=CONTEXT, shortest=shortest)
    if held == "validation" and data.groups is not None:
        kept, tested = (torch.cat(rows) for rows in zip(*map(_earlier, _rows_of_each(data.groups)), strict=True))
        x, y, groups = data.x_train, data.y_train, data.groups
        data = replace(data, x_train=x[kept], y_train=y[kept], groups=groups[kept], x_test=x[tested], y_test=y[tested])
    every = slice(None, None, CONTEXT)
    return replace(data, x_test=data.x_test[every], y_test=data.y_test[every], shape=(CONTEXT,), prepare=_as_numbers)


def _rows_of_each(groups: Tensor) -> list[Tensor]:
    return [(groups == group).nonzero()[:, 0] for group in range(int(groups.max()) + 1)]


def _earlier(rows: Tensor) -> tuple[Tensor, Tensor]:
    """One speaker's windows before the last ninth of the text that is not for testing, and those within that ninth."""
    length = len(rows) + CONTEXT
    cut = length - length // 9
    return rows[: cut - CONTEXT], rows[cut:]


def _as_numbers(x: Tensor) -> Tensor:
    """Codes of characters as float32, in which prepared examples are kept."""
    return x.to(torch.float32)


class GPT(nn.Module):
    """A decoder-only transformer with norms before each part (Radford et al. 2019, Sec. 2.3), without dropout."""

    def __init__(self, *, context: int, characters: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        for weight in (self.embedding.weight, self.position.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Codes of characters `(batch, context)` to scores of the next one at each position `(batch, context, characters)`."""
        hidden = self.embedding(x.to(torch.int64)) + self.position.weight[: x.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


def gpt(*, shape: tuple[int, ...], outputs: int, width: int = 64, heads: int = 4, layers: int = 2) -> nn.Module:
    """The model for windows of this shape."""
    return GPT(context=shape[0], characters=outputs, width=width, heads=heads, layers=layers)


def each_position(model: nn.Module, batch: Any) -> Tensor:
    """The mean cross-entropy over all positions: each character of a window is guessed from those before it."""
    x, y = batch
    scores = model(x)
    targets = torch.cat([x[:, 1:].to(torch.int64), y[:, None]], dim=1)
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def counted(data: DataSet, *, before: int) -> float:
    """The perplexity on the held-out windows of counts of a character after the `before` characters that precede it, 0 or 1.

    Counts are of all speakers together, and each begins at one.
    """
    counts = torch.ones(data.outputs if before else 1, data.outputs, dtype=torch.float64)
    previous, following = data.x_train[:, -1].to(torch.int64), data.y_train
    counts.view(-1).index_add_(0, previous * before * data.outputs + following, torch.ones(len(following), dtype=torch.float64))
    shares = counts / counts.sum(1, keepdim=True)
    context = data.x_test.to(torch.int64)
    targets = torch.cat([context[:, 1:], data.y_test[:, None]], dim=1)
    return math.exp(-float(shares[context * before, targets].log().mean()))
