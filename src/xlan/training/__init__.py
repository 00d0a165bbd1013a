"""Training: batches in, weights out; cross-entropy, then self-critical."""
