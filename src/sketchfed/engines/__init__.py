"""Engines move bytes between the server and the clients; what the bytes say is none of their business."""

from sketchfed.engines.base import Engine
from sketchfed.engines.local import LocalEngine
from sketchfed.engines.participant import Participant
from sketchfed.engines.recorder import Exchange, Recorder

__all__ = ["Engine", "Exchange", "LocalEngine", "Participant", "Recorder"]
