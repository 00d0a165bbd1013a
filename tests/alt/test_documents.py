"""Markdown, reStructuredText, notebooks and single points of HTML: what is found, what is written, what comes back."""

from __future__ import annotations

import contextlib
import json
import re
import string
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlan.alt.document import Document, find_documents
from xlan.alt.images import NEEDS_TEXT
from xlan.alt.pictures import LocalPicture, is_spacer, locate
from xlan.alt.sentence import alt_sentence, is_file_name
from xlan.errors import DataError

TEXT = "A *dog* [x] & `cat` | <b>_y_\\ “é” $1$ !"


def document(folder: Path, name: str, content: str | bytes) -> Document:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return Document(path)


def lacking(found: Document) -> list[int]:
    return [number for number, one in enumerate(found.images) if one.state in NEEDS_TEXT]


def round_trip(found: Document, text: str = TEXT) -> bytes:
    """Write, read, undo; returns the changed bytes."""
    before = found.path.read_bytes()
    todo = lacking(found)
    changed = found.describe(dict.fromkeys(todo, text), marked=True)
    found.write(changed)
    again = Document(found.path)
    assert [number for number, one in enumerate(again.images) if one.state == "marked"] == todo
    assert {again.images[number].alt for number in todo} <= {text}
    assert again.undo(todo) == before
    accepted = again.describe(dict.fromkeys(todo, text), marked=False)
    assert b"alt-by" not in accepted
    return changed


MARKDOWN = """---
title: x
---

# Heading ![](a.jpg)

Text `![](code.jpg)` \\![](escaped.jpg) ![IMG_1.jpg](<b c/IMG_1.jpg> "title"){width=50%} more

[![](c.jpg "t")](link.html) ![][ref] ![described](d.jpg) ![shortcut]

> quoted ![](e%20f.jpg)
> ![](nested(1).jpg)

- item
  ![](g.jpg)

| a | b |
|---|---|
| ![](h.jpg) | ![](i.jpg) |

```
![](fence.jpg)
```

    ![](indented.jpg)

<p align="center"><img src="j.jpg"></p>

inline <img src="k.jpg" alt=""> and <!-- ![](comment.jpg) -->

{{ "![](template.jpg)" }}

[ref]: r.jpg
[shortcut]: s.jpg
"""


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_markdown(tmp_path: Path, ends: str) -> None:
    from markdown_it import MarkdownIt

    found = document(tmp_path, "page.md", MARKDOWN.replace("\n", ends))
    expected = ["a.jpg", "b c/IMG_1.jpg", "c.jpg", "r.jpg", "e f.jpg", "nested(1).jpg", "g.jpg", "h.jpg", "i.jpg"]
    assert [found.images[n].sources[0] for n in lacking(found)] == [*expected, "j.jpg", "k.jpg"]
    changed = round_trip(found).decode()
    shown = MarkdownIt("commonmark").enable("table").render(changed)
    texts = re.findall(r'<img src="[^"]*" alt="([^"]*)"', shown)
    assert texts.count("A *dog* [x] &amp; `cat` | &lt;b&gt;_y_\\ “é” $1$ !") == len(expected) + 2  # and both HTML ones


SOUP = ["![", "](a.jpg)", "](b.png 'x')", "]", "[", "(", ")", "`", "``", "\\", "\n", "\n\n", "> ", "- ", "    ", "#"]
SOUP += ["<img src=c.jpg>", "<!--", "-->", "IMG_1.jpg", "word ", "*", "_", "|", "{w}", "é", "```\n"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(SOUP), max_size=30))
def test_any_markdown_can_be_described_and_undone(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    """Or it is refused and nothing is written."""
    found = document(tmp_path_factory.mktemp("md"), "x.md", "".join(parts))
    for number in lacking(found):
        with contextlib.suppress(DataError):
            path = found.path.with_name("y.md")
            path.write_bytes(found.describe({number: "A dog."}, marked=True))
            assert Document(path).undo([number]) == found.path.read_bytes()


RST = """Title
=====
.. image:: a.jpg

Text::

   .. image:: literal.jpg

.. figure:: b.jpg
   :width: 300
   :alt: IMG_0001.jpg

   Caption.

- .. image:: c.jpg
     :height: 3

.. note::

   .. image:: d.jpg
      :alt:

.. code-block:: rst

   .. image:: code.jpg

.. a comment
   .. image:: comment.jpg

.. |sub| image:: e.jpg

.. image:: f.jpg
   :alt: described

.. image::
   long/
   g.jpg

Paragraph
.. image:: text.jpg

.. image:: last.jpg"""


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
def test_restructured_text(tmp_path: Path, ends: str, last: str) -> None:
    core = pytest.importorskip("docutils.core", reason="docutils is not installed: pip install 'xlan[dev]'")
    nodes = pytest.importorskip("docutils.nodes")
    settings = {"report_level": 5, "file_insertion_enabled": False, "raw_enabled": False}
    source = (RST + last).replace("\n", ends)
    found = document(tmp_path, "page.rst", source)
    expected = ["a.jpg", "b.jpg", "c.jpg", "d.jpg", "long/g.jpg", "last.jpg"]
    assert [found.images[n].sources[0] for n in lacking(found)] == expected
    changed = round_trip(found).decode()

    def tree(text: str) -> list[tuple[str, str, str]]:
        parsed = core.publish_doctree(text, settings_overrides=settings)
        for comment in list(parsed.findall(nodes.comment)):
            if comment.astext().startswith("alt-by"):
                comment.parent.remove(comment)
        return [
            (one.__class__.__name__, one.get("uri", "") if isinstance(one, nodes.Element) else one.astext(), "")
            for one in parsed.findall()
        ]

    assert tree(changed) == tree(source)
    images = core.publish_doctree(changed, settings_overrides=settings).findall(nodes.image)
    assert [one["uri"] for one in images if one.get("alt") == TEXT] == [
        found.images[n].sources[0] for n in lacking(found)
    ]


def notebook(source: object, **cell: object) -> str:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": source, **cell},
        {"cell_type": "code", "source": "![](x)"},
    ]
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}, indent=1)


@pytest.mark.parametrize("as_list", [True, False])
def test_notebooks(tmp_path: Path, as_list: bool) -> None:
    lines = ['# 😀 "é" \\ \n', "![](a.jpg)![](b.jpg)\n", "\n", "![image.png](attachment:image.png)"]
    attachments = {"image.png": {"image/png": "iVBORw0KGgo="}}
    found = document(tmp_path, "x.ipynb", notebook(lines if as_list else "".join(lines), attachments=attachments))
    assert [found.images[n].state for n in lacking(found)] == ["missing", "missing", "file name"]
    assert found.images[2].sources[0].startswith("data:image/png;base64,")
    changed = json.loads(round_trip(found))
    original = json.loads(notebook(lines if as_list else "".join(lines), attachments=attachments))
    assert [cell["cell_type"] for cell in changed["cells"]] == ["markdown", "code"]
    assert type(changed["cells"][0].pop("source")) is type(original["cells"][0].pop("source"))
    assert changed == original


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.ipynb", "{", "not valid JSON"),
        ("a.ipynb", "[]", "not a notebook"),
        ("a.ipynb", "[" * 100_000, "nested too deeply"),
        ("a.html", b"\xff\xfea", "not whole UTF-16"),
        ("a.txt", "", "expected a document (.html"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        document(tmp_path, name, content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tag", "state"),
    [
        ("<img src=a.jpg>", "missing"),
        ('<img src=a.jpg alt="">', "empty"),
        ('<img src=a.jpg alt="" role=presentation>', "decorative"),
        ("<img src=a.jpg aria-hidden=true>", "decorative"),
        ("<img src=a.jpg width=1 height=1>", "decorative"),
        ('<img src=a.jpg aria-label="x y">', "described"),
        ("<img src=dog.jpg alt=dog>", "described"),
        ("<img src=dog-2.jpg alt=dog-2>", "file name"),
        ('<img src=a.jpg alt="{{ x }}">', "described"),
        ('<img src=a.jpg {% if a %}alt="x"{% endif %}>', "computed"),
        ('{{ "<img src=a.jpg>" }}', "computed"),
        ('<img src=a.jpg alt="A cat." data-alt-by="xlan">', "marked"),
        ('<img src=a.jpg alt="A cat." data-alt-by="me">', "described"),
    ],
)
def test_states(tmp_path: Path, tag: str, state: str) -> None:
    assert [one.state for one in document(tmp_path, "x.html", tag).images] == [state]


def test_a_character_the_encoding_lacks_is_written_as_a_reference(tmp_path: Path) -> None:
    found = document(tmp_path, "x.html", "<meta charset=iso-8859-1>é<img src=a.jpg>".encode("latin-1"))
    changed = found.describe({0: "Ж – é"}, marked=True)
    assert changed.startswith(b"<meta charset=iso-8859-1>\xe9<img")
    assert b'alt="&#1046; \x96 \xe9"' in changed


@pytest.mark.parametrize(
    ("caption", "sentence"),
    [
        ("a dog on grass", "A dog on grass."),
        ("a picture of a dog", "A dog."),
        ("an image of a photo of two cats", "Two cats."),
        ("a man taking a picture of a dog", "A man taking a picture of a dog."),
        ("élan", "Élan."),
        ("done.", "Done."),
        ("  ", ""),
    ],
)
def test_sentences(caption: str, sentence: str) -> None:
    assert alt_sentence(caption) == sentence


@pytest.mark.parametrize("name", ["IMG_2041.jpg", "DSC0001", "PXL_20240101_120000", "a.PNG"])
def test_file_names(name: str) -> None:
    assert is_file_name(name)


@given(st.text(string.ascii_letters + " ,.", min_size=1, max_size=40))
def test_sentences_of_words_are_no_file_names(text: str) -> None:
    assert not is_file_name(alt_sentence("the " + text))


def test_pictures_are_local_files_or_not(tmp_path: Path) -> None:
    (tmp_path / "site" / "sub").mkdir(parents=True)
    (tmp_path / "site" / "a b.jpg").write_bytes(b"x")
    site = tmp_path / "site"
    for source in ("../a%20b.jpg", "/a%20b.jpg", "../a b.jpg?v=1#x", "..\\a b.jpg"):
        found = locate([source], site / "sub", site)
        assert isinstance(found, LocalPicture), source
        assert found.key == str((site / "a b.jpg").resolve())
    for source in ("http://x/a.jpg", "https://x/a.jpg", "//x/a.jpg", "ftp://x/a", "file:///etc/passwd", "cid:1"):
        assert locate([source], site, site) == "not local"
    assert locate(["no.jpg"], site, site) == "no such file"
    assert locate(["{{ x }}.jpg"], site, site) == "the address is made by a template"
    assert locate(["a\0.jpg"], site, site) == "not a file name"
    assert locate(["x" * 5000], site, site) == "no such file"
    assert locate(["data:image/png;base64,!"], site, site) == "a damaged data: address"
    assert locate(["data:image/svg+xml,<svg/>"], site, site) == "a drawing (SVG), not a photo"
    assert locate(["http://x/a.jpg", "/a b.jpg"], site, site) != "not local"  # the next address is local
    gif = locate(["data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="], site, site)
    assert isinstance(gif, LocalPicture)
    assert is_spacer(gif)


def test_folders_with_circles_of_links(tmp_path: Path) -> None:
    (tmp_path / "deep" / ".git").mkdir(parents=True)
    for name in ("b.md", "a.html", "deep/c.rst", "deep/.git/d.md", "e.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    (tmp_path / "self.html").symlink_to(tmp_path / "self.html")
    (tmp_path / "link.md").symlink_to(tmp_path / "b.md")
    names = [str(path.relative_to(tmp_path)) for path in find_documents(tmp_path, pytest.fail)]
    assert names == ["a.html", "b.md", "deep/c.rst"]
    assert list(find_documents(tmp_path / "link.md", pytest.fail)) == [(tmp_path / "b.md").resolve()]


def test_many_images_deep_nesting_and_large_pages_take_time_in_proportion(tmp_path: Path) -> None:
    """20,000 images, 20,000 levels, 8 MB: a tenth to a fifth of what the limits allow, to stay quick."""
    content = "<div>" * 20_000 + "<img src=a.jpg>" * 20_000 + "<p>" + "{{ <x> " * 5_000 + "word " * 1_600_000
    found = document(tmp_path, "x.html", content)
    assert len(lacking(found)) == 20_000
    changed = found.describe(dict.fromkeys(lacking(found), "A dog."), marked=True)
    assert changed.count(b'alt="A dog." data-alt-by="xlan"') == 20_000


def test_many_comments_take_time_in_proportion(tmp_path: Path) -> None:
    began = time.perf_counter()
    found = document(tmp_path, "x.html", "<!-- a comment --><p>some text of a page</p>\n" * 50_000 + "<img src=a.jpg>")
    assert lacking(found) == [0]
    assert time.perf_counter() - began < 20


def test_a_page_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    with path.open("wb") as file:
        file.truncate((8 << 20) + 1)  # takes no room on disk
    with pytest.raises(DataError, match="more than the limit of 8,388,608 bytes"):
        Document(path)


def test_a_file_that_changed_is_not_written(tmp_path: Path) -> None:
    found = document(tmp_path, "x.html", "<img src=a.jpg>")
    changed = found.describe({0: "A dog."}, marked=True)
    found.path.write_text("somebody else's work")
    with pytest.raises(DataError, match="changed by another program meanwhile"):
        found.write(changed)
    assert found.path.read_text() == "somebody else's work"


def test_permissions_stay(tmp_path: Path) -> None:
    found = document(tmp_path, "x.html", "<img src=a.jpg>")
    found.path.chmod(0o640)
    found.write(found.describe({0: "A dog."}, marked=True))
    assert found.path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["x.html"]
