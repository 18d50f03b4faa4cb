"""The plays of Shakespeare: guess the next character that a speaker says."""

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.data.dataset import DataSet
from sketchfed.data.files import DataSource, read_text
from sketchfed.data.one_hot import one_hot
from sketchfed.errors import InputError

ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The 65 characters of the text; a character's code is its place here."""

SOURCE = DataSource(
    name="shakespeare",
    file="tinyshakespeare.txt.gz",
    published="'tinyshakespeare' by A. Karpathy (karpathy/char-rnn, data/tinyshakespeare/input.txt), compressed with gzip",
    contents="blank lines between speeches, each after a line 'SPEAKER:'",
)


def shakespeare(*, window: int = 16, shortest: int = 1_000) -> DataSet:
    """Guess the next of 65 characters from the `window` before it, one-hot; every speaker is a client of its own.

    A speaker's text is all that is said under that name, joined by line ends. Speakers with fewer than `shortest`
    characters are dropped: of 1,000, that leaves 19 in 20 characters. The last tenth of each text is for testing,
    and no window reaches across, so no character is in both parts. Text of Karpathy 2015, clients after McMahan et al. 2017.
    """
    for option, value in (("window", window), ("shortest", shortest)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{option} of 'shakespeare' must be a positive integer, got {value!r}.")
    if window >= shortest // 10:
        raise InputError(
            f"a window of {window} characters and the one that follows do not fit into the last tenth of a text of {shortest}, "
            f"which is for testing. Use window < {shortest // 10}, or shortest >= {10 * (window + 1)}."
        )
    texts = [text for text in _texts() if len(text) >= shortest]
    if not texts:
        raise InputError(f"nobody in 'shakespeare' says {shortest:,} characters. Use a smaller value of shortest.")
    train = [_windows(text[: len(text) - len(text) // 10], window) for text in texts]
    test = [_windows(text[len(text) - len(text) // 10 :], window) for text in texts]
    rows, tests = torch.cat(train), torch.cat(test)
    return DataSet(
        name="shakespeare",
        x_train=rows[:, :-1].contiguous(),
        y_train=rows[:, -1].to(torch.int64),
        x_test=tests[:, :-1].contiguous(),
        y_test=tests[:, -1].to(torch.int64),
        outputs=len(ALPHABET),
        shape=(window * len(ALPHABET),),
        groups=torch.repeat_interleave(torch.arange(len(train)), torch.tensor([len(part) for part in train])),
        prepare=_OneHotCharacters(window),
    )


@dataclass(frozen=True)
class _OneHotCharacters:
    window: int

    def __call__(self, x: Tensor) -> Tensor:
        return one_hot(x, [len(ALPHABET)] * self.window)


def _texts() -> list[Tensor]:
    """What each speaker says, as codes, in the order of their first words."""
    spoken: defaultdict[str, list[str]] = defaultdict(list)
    speaker = ""
    for block in re.split(r"\n\n+", read_text(SOURCE).strip()):
        heading, _, rest = block.partition("\n")
        named = heading.endswith(":")
        speaker = heading[:-1] if named else speaker  # a speech may go on after a blank line
        if not speaker:
            raise SOURCE.wrong(SOURCE.found(), f"is not usable: it begins with {heading[:40]!r} and not with a speaker")
        if words := rest if named else block:
            spoken[speaker].append(words)
    return [_codes("\n".join(speeches)) for speeches in spoken.values()]


_CODES = np.full(128, 255, np.uint8)
_CODES[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


def _codes(text: str) -> Tensor:
    codes = _CODES[np.frombuffer(text.encode("ascii"), np.uint8)]
    if (unknown := codes == 255).any():
        character = text[int(unknown.argmax())]
        raise SOURCE.wrong(SOURCE.found(), f"is not usable: it has the character {character!r}, which that text has not")
    return torch.from_numpy(codes)


def _windows(codes: Tensor, window: int) -> Tensor:
    """All runs of `window` + 1 consecutive codes, a row each."""
    return codes.unfold(0, window + 1, 1)
