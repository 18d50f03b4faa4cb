"""What every algorithm must do with its settings and its code, and the suite of all demands."""

import tomllib
from dataclasses import fields, replace

import pytest
import torch

from sketchfed.algorithms import Algorithm, Change, CodecSettings, RoundContext, SketchSettings, SubspaceSettings
from sketchfed.config import Config, DataSettings, EngineSettings, load_config
from sketchfed.errors import InputError
from sketchfed.testing.algorithm_cases import (
    CLIENTS,
    AlgorithmSuite,
    clients_data,
    code_of,
    dim,
    module,
    own_noise,
    started,
    working,
)
from sketchfed.testing.algorithm_options import AlgorithmOptions
from sketchfed.testing.algorithm_rounds import AlgorithmRounds
from sketchfed.testing.algorithm_views import AlgorithmViews
from sketchfed.testing.federation import advanced
from sketchfed.testing.problems import SEED
from sketchfed.testing.suite import only
from sketchfed.wire import Bits, pack


def _config(algorithm: Algorithm) -> Config:
    engine = EngineSettings(workers=1, checkpoint_seconds=0.0)
    return Config(algorithm=working(algorithm, rounds=4), privacy=own_noise(algorithm), engine=engine)


def _filled(algorithm: Algorithm, name: str) -> object:
    """A setting with all of its own defaults filled in."""
    value = getattr(algorithm, name)
    if isinstance(value, SketchSettings | SubspaceSettings):
        return value.completed()
    return value.completed(algorithm.planned(CLIENTS)) if isinstance(value, CodecSettings) else value


class AlgorithmSettings(AlgorithmSuite):
    """Settings."""

    def test_resolving_twice_changes_nothing(self, algorithm: Algorithm) -> None:
        """`resolved` fills in every default: `global_rate`, and those of [sketch], [codec], [subspace]. Twice is like once."""
        once = working(algorithm).resolved(dim(), CLIENTS, module())
        assert once.global_rate is not None, "resolved leaves global_rate open"
        for name in (field.name for field in fields(once)):
            assert getattr(once, name) == _filled(once, name), f"resolved leaves defaults of '{name}' open: use its completed()"
        assert once.resolved(dim(), CLIENTS, module()) == once

    def test_a_configuration_survives_as_tables_and_as_a_file(self, algorithm: Algorithm) -> None:
        """The settings survive `to_tables` and `to_toml`, before and after they are resolved.

        The class is found again by its name in the registry or as `package.module:Class`, so it is at the top of a module.
        """
        config = replace(_config(algorithm), data=DataSettings(clients=CLIENTS))
        sizes = [len(each.x) for each in clients_data()]
        for each in (config, config.completed(dim=dim(), sizes=sizes, module=module())):
            for tables in (each.to_tables(), tomllib.loads(each.to_toml())):
                found = load_config(tables)
                assert replace(found, algorithm=each.algorithm) == each
                assert type(found.algorithm) is type(algorithm)
                assert found.to_tables() == each.to_tables()

    @only(lambda suite, algorithm: algorithm.noise_defaults is not None)
    def test_an_algorithm_that_needs_noise_is_refused_without_it(self, algorithm: Algorithm) -> None:
        """An algorithm with `noise_defaults` is refused without [privacy]."""
        tables = _config(algorithm).to_tables()
        del tables["privacy"]
        with pytest.raises(InputError, match="runs only with noise"):
            load_config(tables)


class AlgorithmCode(AlgorithmSuite):
    """The linear code."""

    @only(lambda suite, algorithm: code_of(algorithm) is not None)
    def test_a_client_sends_its_change_through_the_code(self, algorithm: Algorithm) -> None:
        """If `code` returns a code, `client` sends `code.packet(code.apply(change))` and keeps nothing.

        Otherwise noise and masks would be added to something else than what clients send.
        """
        server = started(algorithm)
        for index in range(2):
            form, resolved = server.algorithm.given(SEED, index), server.algorithm
            replica = server.state.replica
            context = RoundContext(round=index, seed=SEED, client=1, replica=replica, population=CLIENTS)
            length = dim() if form.sketch is None else form.sketch.size
            change = torch.randn(length, generator=torch.Generator().manual_seed(index))
            code = resolved.code(length, context)
            packet, memory = resolved.client(Change(change), None, context)
            assert memory is None
            assert pack(packet) == pack(code.packet(code.apply(change)))
            assert not any(isinstance(array, Bits) for array in packet.arrays.values())
            resolved.check(packet, dim(), context)
            advanced(server, 1)


class AlgorithmConformance(AlgorithmSettings, AlgorithmCode, AlgorithmOptions, AlgorithmRounds, AlgorithmViews):
    """All demands on an algorithm. `algorithms` are instances of yours; rounds and local work are set by the suite."""
