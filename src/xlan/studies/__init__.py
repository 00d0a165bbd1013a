"""Many training runs as one experiment: the same recipe for every row, then one table with intervals."""
