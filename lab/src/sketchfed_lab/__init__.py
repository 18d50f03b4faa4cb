"""The laboratory of sketchfed: experiments of the papers, benchmarks, and federations with faults.

It uses public names of sketchfed only, so it is also the largest example of what can be built on them.
"""

__version__ = "0.2.0.dev0"
