"""What we show in a browser: self-contained HTML pages, nothing fetched, every text from outside escaped."""
