"""The configuration of a run: frozen structs from one TOML file. Settings that cannot work are refused before round 1."""

from sketchfed.config.loading import TABLES as TABLES
from sketchfed.config.loading import load_config
from sketchfed.config.settings import ENGINES, DataSettings, EngineSettings, ModelSettings
from sketchfed.config.settings import GIVEN as GIVEN
from sketchfed.config.settings import SHARING as SHARING
from sketchfed.config.whole import Config

__all__ = ["ENGINES", "Config", "DataSettings", "EngineSettings", "ModelSettings", "load_config"]
