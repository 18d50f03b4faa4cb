"""Flower's PyTorch quick start on handwritten digits."""
