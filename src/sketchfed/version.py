"""The version of sketchfed, in a module that imports nothing."""

__version__ = "0.2.0.dev0"
