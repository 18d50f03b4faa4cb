"""Prepared data is kept as long as there is room, and is what would be prepared anew."""

import torch

from sketchfed.rounds.kept import KeptExamples
from sketchfed.training import Examples


def counted(calls):
    def prepare(client):
        calls.append(client)
        return Examples(torch.full((4, 5), float(client)), torch.zeros(4, dtype=torch.int64))

    return prepare


SIZE = 4 * 5 * 4 + 4 * 8


def test_a_client_is_prepared_once_while_there_is_room():
    calls = []
    kept = KeptExamples(counted(calls), room=2 * SIZE)
    for client in (0, 1, 0, 1, 0):
        assert kept(client).x[0, 0] == client
    assert calls == [0, 1]


def test_who_was_not_asked_for_longest_is_forgotten_first():
    calls = []
    kept = KeptExamples(counted(calls), room=2 * SIZE)
    for client in (0, 1, 0, 2, 0, 1):
        kept(client)
    assert calls == [0, 1, 2, 1]


def test_without_room_everything_is_prepared_anew():
    calls = []
    kept = KeptExamples(counted(calls), room=SIZE - 1)
    for _ in range(3):
        kept(0)
    assert calls == [0, 0, 0]
