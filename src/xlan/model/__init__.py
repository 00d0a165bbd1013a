"""Regions → logits: the attention layers of the paper and the models made of them."""
