"""Words ↔ ids."""
