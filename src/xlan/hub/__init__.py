"""The Hub: models by name, fetched once and kept in the cache of `huggingface_hub`; and model directories put there.

    names.py       owner/name[@revision]
    repository.py  single files of a repository, and what is wrong when they cannot be had
    card.py        the metadata at the top of a model card
    upload.py      files → one commit

Which files make a model is the business of `xlan.pretrained`, which fetches them, and of `xlan.publishing`.
"""
