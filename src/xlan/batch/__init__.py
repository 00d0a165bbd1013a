"""Many pictures on many processes or machines: inputs, a plan of shards, workers, and output that is written once."""
