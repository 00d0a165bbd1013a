"""Alternative text for the pictures of web pages, Markdown, reStructuredText and notebooks.

    document → images (html, markdown, rst, notebook) → pictures on disk → suggestions → edits → the same document

Documents are never written out again from a parsed form: an edit replaces a few characters, everything around them
stays byte for byte, and the result is parsed again before it replaces the file.
"""
