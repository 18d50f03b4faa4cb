"""`python -m sketchfed.cli`, the same as `sketchfed`."""

from sketchfed.cli import main

main()
