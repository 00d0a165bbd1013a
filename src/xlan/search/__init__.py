"""Search by sentence: the photos of a folder, ranked by how well the sentence describes them.

    from xlan.search import PhotoSearch
    photos = PhotoSearch.open("holiday", captioner)
    photos.update()
    for found in photos.search("a dog on the beach").found: print(found.path, found.score)

folder → update (what changed) → index on disk (encodings, captions, words seen) → rank (two stages) → Answer
"""

from xlan.search.library import PhotoSearch
from xlan.search.rank import Answer, Found

__all__ = ["Answer", "Found", "PhotoSearch"]
