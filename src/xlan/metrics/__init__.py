"""Tokens → scores: the COCO caption metrics and the CIDEr-D reward. NumPy only; nothing here imports torch."""
