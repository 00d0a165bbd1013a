"""The frame and the look that our pages share: light and dark, narrow and wide, no script, nothing from the network."""

from __future__ import annotations

import base64
import io
from html import escape

from PIL import Image

# The page may hold nothing but its own style and its own pictures, whatever a caption or a file name tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--card:#f5f6f8;--line:#dfe3e8;--mark:#0b62c4;
--warn:#fff1d6;--warn-ink:#5c3b00}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#a5adb6;--paper:#14171a;--card:#1e2226;--line:#353b42;
--mark:#6cb2ff;--warn:#3a2c12;--warn-ink:#ffdf9e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.6rem;margin:0 0 4px}
p{margin:0 0 12px}.soft{color:var(--soft)}
.warn{background:var(--warn);color:var(--warn-ink);border-radius:8px;padding:12px 16px;margin:16px 0;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:16px;margin:24px 0 0}
figure{background:var(--card);border:1px solid var(--line);border-radius:8px;margin:0;overflow:hidden}
figure img{display:block;width:100%;height:220px;object-fit:contain;background:var(--line)}
figcaption{padding:12px 14px;overflow-wrap:anywhere}
.said{font-size:1.1rem;margin:0 0 8px}
.meter{height:6px;border-radius:3px;background:var(--line);margin:0 0 8px}
.meter i{display:block;height:100%;border-radius:3px;background:var(--mark)}
.facts{color:var(--soft);font-size:.85rem;margin:0;font-variant-numeric:tabular-nums}
details{color:var(--soft);font-size:.85rem;margin-top:8px}summary{cursor:pointer}ol{margin:6px 0 0;padding-left:20px}
"""


def page(title: str, body: str) -> str:
    """A whole HTML document; `title` is text, `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def text(value: str) -> str:
    """Text from anywhere as HTML; bytes of a file name that are no text become question marks."""
    return escape(value.encode("utf-8", "replace").decode("utf-8"))


def thumbnail(image: Image.Image, *, side: int = 480) -> str:
    """An RGB image as a `data:` address, at most `side` pixels wide and high."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
