"""The configuration of a run: frozen structs from one TOML file. Settings that cannot work are refused before round 1."""

from sketchfed.config.loading import TABLES, load_config
from sketchfed.config.settings import ENGINES, GIVEN, SHARING, DataSettings, EngineSettings, ModelSettings
from sketchfed.config.whole import Config

__all__ = [
    "ENGINES",
    "GIVEN",
    "SHARING",
    "TABLES",
    "Config",
    "DataSettings",
    "EngineSettings",
    "ModelSettings",
    "load_config",
]
