"""Images → regions."""
