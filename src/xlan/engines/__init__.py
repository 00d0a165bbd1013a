"""What turns regions into words: one interface over numpy, and the engines behind it."""
