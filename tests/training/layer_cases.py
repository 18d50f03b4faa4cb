"""One small model for each kind of layer, with data that it reads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

WORDS, WIDTH, LENGTH, CLASSES = 7, 6, 5, 3


class Tokens(nn.Module):
    """Embeds tokens, reads them with a layer, and says a class."""

    def __init__(self, embed: nn.Module | None = None, reader: nn.Module | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH) if embed is None else embed
        self.reader = reader
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.embed(tokens)
        if isinstance(self.reader, nn.MultiheadAttention):
            found = self.reader(found, found, found, key_padding_mask=tokens == 0)[0]
        elif self.reader is not None:
            found = self.reader(found)
        if isinstance(found, tuple):
            found = found[0]
        return self.head(found.mean(1) if found.ndim == 3 else found)


class Tied(nn.Module):
    """Scores words by their embeddings; the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(tokens).mean(1)))[:, :CLASSES]


class Partly(nn.Module):
    """Has a layer that no pass uses, a scalar, and parameters in lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.scale = nn.Linear(2, 2), nn.Parameter(torch.tensor(1.5))
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(WIDTH, 4)), nn.Parameter(torch.randn(4, CLASSES))])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(CLASSES))})

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x @ self.parts[0]).tanh() @ self.parts[1] + self.named["shift"]


def dense(first: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 8) if first is None else first, nn.Tanh(), nn.Linear(8, CLASSES))


def frozen() -> nn.Module:
    module = dense()
    module[0].requires_grad_(False)
    return module


def lora() -> nn.Module:
    """Raises `ImportError` where peft is not installed."""
    import peft

    return peft.get_peft_model(dense(), peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"]))


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), *layers, nn.Flatten(), nn.LazyLinear(CLASSES))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


@dataclass(frozen=True)
class Case:
    """A kind of layer. `make` makes a model of it, which reads `tokens` or else vectors."""

    make: Callable[[], nn.Module]
    tokens: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    """What the configuration says of its model."""
    draws: bool = False
    """Whether a forward pass draws random numbers."""


parametrizations = nn.utils.parametrizations
CASES = {
    "dense layers": Case(dense),
    "convolutions": Case(lambda: images(nn.Conv2d(1, 2, 2), nn.ConvTranspose2d(2, 3, 2), nn.GroupNorm(1, 3))),
    "recurrent layers (LSTM)": Case(
        lambda: Tokens(reader=nn.LSTM(WIDTH, 5, batch_first=True, bidirectional=True), width=10), tokens=True
    ),
    "recurrent layers (GRU)": Case(
        lambda: Tokens(reader=nn.GRU(WIDTH, 5, batch_first=True, num_layers=2), width=5), tokens=True
    ),
    "recurrent layers (RNN)": Case(lambda: Tokens(reader=nn.RNN(WIDTH, 5, batch_first=True), width=5), tokens=True),
    "attention": Case(lambda: Tokens(reader=nn.MultiheadAttention(WIDTH, 2, batch_first=True)), tokens=True),
    "transformers": Case(lambda: Tokens(reader=encoder()), tokens=True),
    "embeddings": Case(Tokens, tokens=True),
    "embeddings with padding_idx": Case(lambda: Tokens(nn.Embedding(WORDS, WIDTH, padding_idx=0)), tokens=True),
    "embeddings with max_norm": Case(lambda: Tokens(nn.Embedding(WORDS, WIDTH, max_norm=1.0)), tokens=True),
    "embeddings with sparse=True": Case(lambda: Tokens(nn.Embedding(WORDS, WIDTH, sparse=True)), tokens=True),
    "bags of embeddings": Case(lambda: Tokens(nn.EmbeddingBag(WORDS, WIDTH)), tokens=True),
    "tied weights": Case(Tied, tokens=True),
    "frozen parameters": Case(frozen),
    "LoRA (peft)": Case(lora),
    "weight_norm": Case(lambda: dense(parametrizations.weight_norm(nn.Linear(WIDTH, 8)))),
    "orthogonal": Case(lambda: dense(parametrizations.orthogonal(nn.Linear(WIDTH, 8)))),
    "spectral_norm": Case(
        lambda: dense(parametrizations.spectral_norm(nn.Linear(WIDTH, 8))),
        model={"buffers": "average", "running": ["*._u", "*._v"]},
    ),
    "BatchNorm": Case(
        lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)),
        model={"buffers": "average"},
    ),
    "dropout": Case(lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.PReLU(), nn.Linear(8, CLASSES)), draws=True),
    "parameters of your own": Case(Partly),
}
"""The table in docs/training.md has a row for each of these."""


def data_of(case: Case, seed: int, count: int = 8) -> tuple[Tensor, Tensor]:
    """Examples of a client."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, WORDS, (count, LENGTH), generator=draw)
    if case.tokens:
        return tokens, tokens[:, 0] % CLASSES
    x = torch.randn(count, WIDTH, generator=draw)
    return x, x[:, :CLASSES].argmax(1)


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(3)
    made = case.make()
    made(data_of(case, 0)[0])  # lazy layers take their shapes
    return made
