"""Training the small detector: pictures with boxes → losses → a detector directory, measured by COCO's program."""
