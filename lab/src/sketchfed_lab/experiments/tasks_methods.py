"""The codecs that the three tasks are run with, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sketchfed import PublicSeed
from sketchfed.codecs import Channel, Codec


@dataclass(frozen=True, kw_only=True)
class Method:
    """A codec and how a channel uses it."""

    codec: str
    options: Mapping[str, Any] = field(default_factory=dict)
    feedback: bool = False
    prediction: bool = False

    def channel(self, codec: Codec, seed: PublicSeed) -> Channel:
        return Channel(codec, seed, error_feedback=self.feedback, prediction=self.prediction)


PAPER = {
    "rand_k": Method(codec="rand_k"),
    "rand_k_spatial, avg": Method(codec="rand_k_spatial", options={"correlation": "avg"}),
    "rand_proj_spatial, avg": Method(codec="rand_proj_spatial", options={"correlation": "avg"}),
    "wangni": Method(codec="wangni"),
    "induced": Method(codec="induced"),
}
"""The five that the paper compares."""

METHODS = PAPER | {
    "rand_k_spatial": Method(codec="rand_k_spatial"),
    "rand_proj_spatial": Method(codec="rand_proj_spatial"),
    "sketched": Method(codec="sketched"),
    "top_k": Method(codec="top_k"),
    "top_k, feedback": Method(codec="top_k", feedback=True),
    "top_k, prediction": Method(codec="top_k", prediction=True),
    "rand_k, prediction": Method(codec="rand_k", prediction=True),
    "rand_proj_spatial, prediction": Method(codec="rand_proj_spatial", prediction=True),
    "sign": Method(codec="sign"),
    "sign, feedback": Method(codec="sign", feedback=True),
    "eden": Method(codec="eden"),
    "correlated": Method(codec="correlated"),
    "qsgd": Method(codec="qsgd"),
    "dense": Method(codec="dense"),
}

AT_EQUAL_BYTES = {name: method for name, method in METHODS.items() if name != "dense"} | {
    "rand_k, 4 bits": Method(codec="rand_k", options={"bits": 4}),
    "rand_proj_spatial, 4 bits": Method(codec="rand_proj_spatial", options={"bits": 4}),
    "rand_proj_spatial, 4 bits, prediction": Method(codec="rand_proj_spatial", options={"bits": 4}, prediction=True),
    "top_k, 4 bits, prediction": Method(codec="top_k", options={"bits": 4}, prediction=True),
    "eden, prediction": Method(codec="eden", prediction=True),
}
"""Fewer bits a number buy more numbers here."""
