"""Rounds of training: a server, clients, and engines that move bytes between them without reading the bytes."""

from sketchfed.rounds.asynchronous import AsynchronousSettings
from sketchfed.rounds.buffered import BufferedServer
from sketchfed.rounds.engine import Engine, Relay
from sketchfed.rounds.local import LocalEngine
from sketchfed.rounds.participant import Participant
from sketchfed.rounds.recorder import Exchange, Recorder
from sketchfed.rounds.server import Server
from sketchfed.rounds.tally import Answers, Tally

__all__ = [
    "Answers",
    "AsynchronousSettings",
    "BufferedServer",
    "Engine",
    "Exchange",
    "LocalEngine",
    "Participant",
    "Recorder",
    "Relay",
    "Server",
    "Tally",
]
