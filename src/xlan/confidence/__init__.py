"""How much a caption can be trusted: evidence about each content word → calibrated chances."""
