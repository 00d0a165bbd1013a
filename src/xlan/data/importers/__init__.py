"""Feature files of the field → a feature store. `xlan.data.importers.run` is the way in."""
