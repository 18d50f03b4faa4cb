"""What is given to runs that cannot work, and what must be said about it."""

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.errors import SketchfedError

BAD = 2  # the client that does something wrong, where only one does
TRUTH = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
INTERNALS = ("array '", "NoneType", "<locals>", "<lambda>", "backward", "Traceback", "grad_fn", "functional_call")


def pair(count: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x @ TRUTH).argmax(1)


PAIRS = [pair(seed=client) for client in range(4)]
TEST = pair(20, 99)
NUMBERS = [(x, (x @ TRUTH)[:, 0]) for x, _ in PAIRS]
NUMBERS_TEST = (TEST[0], (TEST[0] @ TRUTH)[:, 0])


def net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, outputs))


@dataclass(kw_only=True)
class Case:
    """What a run is given, what its error says, or what is said of the client that it leaves out."""

    given: dict[str, Any]
    refused: str = ""
    drops: str = ""
    participants: tuple[int, ...] = (3, 3)
    config: dict[str, Any] = field(default_factory=dict)


class Cases(dict[str, Case]):
    """Cases by name."""

    def refuse(self, name: str, said: str, **given: Any) -> None:
        """The run is refused, or ends, with these words."""
        self[name] = Case(given=given, refused=said)

    def drop(self, name: str, said: str, participants: tuple[int, ...] = (3, 3), **given: Any) -> None:
        """The run goes on without the bad client, for this reason."""
        self[name] = Case(given=given, drops=said, participants=participants)


def pairs(**changes: Any) -> dict[str, Any]:
    return {"model": net(), "clients": PAIRS, "test": TEST} | changes


def numbers(**changes: Any) -> dict[str, Any]:
    return {"model": net(1), "clients": NUMBERS, "test": NUMBERS_TEST, "task": "regression"} | changes


def for_one(change: Callable[[Any], Any], clients: list[Any] = PAIRS) -> list[Any]:
    """The clients' data, in which the bad one's is changed."""
    return [change(data) if client == BAD else data for client, data in enumerate(clients)]


MARKED = for_one(lambda data: (data[0], data[1] + 3))
"""The targets of one client are 3 and more."""


def batch_classes(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def check(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Run a case for two rounds."""
    own = "train" in case.given
    algorithm = {"rounds": 2} | ({} if own else {"local_epochs": 2}) | case.config.get("algorithm", {})
    config = case.config | {"algorithm": algorithm}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about shapes and complex numbers
        if case.drops:
            run = sketchfed.run(config, **copy.deepcopy(case.given))
            assert tuple(line["participants"] for line in run.metrics) == case.participants
            assert f"goes on without client {BAD}: " in caplog.text
            texts = [record.getMessage() for record in caplog.records if "goes on without" in record.getMessage()]
        else:
            objects = (
                case.given if any(isinstance(part, Iterator) for part in _parts(case.given)) else copy.deepcopy(case.given)
            )
            with pytest.raises(SketchfedError) as raised:
                sketchfed.run(config, **objects)
            texts = [str(raised.value)]
    wanted = case.drops or case.refused
    assert all(re.search(wanted, text) for text in texts), texts
    for internal in INTERNALS:
        assert not any(internal in text for text in texts), texts


def _parts(given: dict[str, Any]) -> Iterator[Any]:
    for value in given.values():
        yield value
        if isinstance(value, list):
            yield from value
