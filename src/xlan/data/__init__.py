"""Captions and features → batches."""
