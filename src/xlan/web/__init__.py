"""A captioner as a folder of files for browsers: no server computes anything, no photo leaves the computer."""
