"""`python -m sketchfed`, the same as `sketchfed`. Launchers such as torchrun take a module."""

from sketchfed.cli import main

main()
