"""How far a caption can be believed: evidence about each content word → calibrated chances."""
