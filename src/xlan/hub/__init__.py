"""The Hub: models by name, fetched once and kept in the cache of `huggingface_hub`; and model directories uploaded to
it.

    names.py       owner/name[@revision]
    repository.py  single files of a repository, and why they cannot be fetched
    card.py        the metadata at the top of a model card
    upload.py      files → one commit

Which files make a model is decided in `xlan.pretrained`, which fetches them, and in `xlan.publishing`.
"""
