"""Adapting the vision network to the words of captions, before any captioner is trained."""
