"""Captions in photo libraries: XMP sidecars beside photos, and XMP inside JPEG, PNG and WebP without re-encoding."""
