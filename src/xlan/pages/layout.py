"""The frame and the look that our pages share: light and dark, narrow and wide, no script, nothing from the network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from PIL import Image

# The page may hold nothing but its own style and its own pictures, whatever a caption or a file name tries.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--card:#f5f6f8;--line:#dfe3e8;--mark:#0b62c4;
--good:#1a7436;--shade:#1b1f2438;--warn:#fff1d6;--warn-ink:#5c3b00;--heat:#ff4d00;
--l0:#0b62c4;--l1:#b3420a;--l2:#1a7f37;--l3:#8250df;--l4:#bf3989;--l5:#6e7781}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#a5adb6;--paper:#14171a;--card:#1e2226;
--line:#353b42;--mark:#6cb2ff;--good:#63d984;--shade:#000000b0;--warn:#3a2c12;--warn-ink:#ffdf9e;
--l0:#6cb2ff;--l1:#ffa25e;--l2:#5fd37a;--l3:#c297ff;--l4:#ff80c8;--l5:#a5adb6}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:32px 0 12px;overflow-wrap:anywhere}h3{font-size:.95rem;margin:0 0 6px}
p{margin:0 0 12px}.soft{color:var(--soft)}
a{color:var(--mark)}:focus-visible{outline:3px solid var(--mark);outline-offset:2px}
.warn{background:var(--warn);color:var(--warn-ink);border-radius:8px;padding:12px 16px;margin:16px 0;font-weight:600}
.warn h2{margin:0 0 8px}.warn ul{font-weight:400;margin:0;padding-left:20px}

.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:16px;margin:24px 0 0}
figure,article,.tile,.word{background:var(--card);border:1px solid var(--line);border-radius:8px;margin:0}
figure,.word{overflow:hidden}
figure img{display:block;width:100%;height:220px;object-fit:contain;background:var(--line)}
figcaption{padding:12px 14px;overflow-wrap:anywhere}
.said{font-size:1.1rem;margin:0 0 8px}
.meter{height:6px;border-radius:3px;background:var(--line);margin:0 0 8px}
.meter i{display:block;height:100%;border-radius:3px;background:var(--mark)}
.facts{color:var(--soft);font-size:.85rem;margin:0;font-variant-numeric:tabular-nums}
details{color:var(--soft);font-size:.85rem;margin-top:8px}summary{cursor:pointer}ol{margin:6px 0 0;padding-left:20px}

.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:16px 0 0}
.tile,article{padding:12px 14px}
.tile dt{color:var(--soft);font-size:.8rem}.tile dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums}
.tile small{display:block;color:var(--soft);font-size:.75rem}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:12px}
.plain,article ol,article ul{list-style:none;margin:0;padding:0}article li{margin:2px 0}
article{overflow-wrap:anywhere}article img{display:block;width:100%;max-height:240px;object-fit:contain;
background:var(--line);border-radius:4px;margin:0 0 10px}article h4{font-size:.85rem;margin:10px 0 2px}
article .facts{margin:0 0 6px}
.tag,.epoch{color:var(--soft);font-size:.78rem;margin-right:6px}
/* A shadow at the edge behind which there is more: the first two layers scroll along and cover it at the ends. */
.scroll{overflow-x:auto;background:linear-gradient(90deg,var(--paper) 40%,transparent) 0 0/48px 100% no-repeat local,
linear-gradient(270deg,var(--paper) 40%,transparent) 100% 0/48px 100% no-repeat local,
linear-gradient(90deg,var(--shade),transparent) 0 0/14px 100% no-repeat scroll,
linear-gradient(270deg,var(--shade),transparent) 100% 0/14px 100% no-repeat scroll}
.more{display:none;color:var(--soft);font-size:.85rem;margin:0 0 4px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:5px 12px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
thead th{color:var(--soft)}.best td,.best th,td.good{font-weight:600;color:var(--good)}
tbody th{position:sticky;left:0;background:var(--paper)}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;margin:0;overflow:auto;
max-height:460px;font-size:.8rem}

.whisker{display:block}.zero{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 2}
.whisker .dot{fill:currentColor}.whisker .curve{stroke:currentColor;stroke-width:2}
.chart figcaption{font-size:.85rem;display:flex;justify-content:space-between;padding:12px 14px 0}
.chart svg{width:100%;height:auto;display:block;padding:0 14px 12px}
.curve{fill:none;stroke:var(--mark);stroke-width:1.8;stroke-linejoin:round}.dot{fill:var(--mark)}
.mark{fill:none;stroke:var(--good);stroke-width:2}
.line0{stroke:var(--l0)}.line1{stroke:var(--l1)}.line2{stroke:var(--l2)}.line3{stroke:var(--l3)}
.line4{stroke:var(--l4)}.line5{stroke:var(--l5)}
.dash0{stroke-dasharray:6 3}.dash1{stroke-dasharray:2 2}.dash2{stroke-dasharray:8 2 2 2}
.legend{list-style:none;margin:0;padding:0 14px 12px;display:flex;flex-wrap:wrap;gap:2px 14px;font-size:.8rem}
.legend li{display:flex;align-items:center;gap:6px}.legend span{color:var(--soft)}
.chart .legend svg{width:24px;height:8px;padding:0}
.grid{stroke:var(--line);stroke-width:1}.tick{fill:var(--ink);font-size:13px;font-family:system-ui,sans-serif}

.store{position:absolute;width:0;height:0}
.shot{display:block;width:100%;height:auto;max-height:340px;background:var(--line)}
.word use{filter:grayscale(1)}
.heat{fill:var(--heat);shape-rendering:crispEdges;print-color-adjust:exact}
.edge,.edge-in{fill:none;vector-effect:non-scaling-stroke;stroke:#000;stroke-width:5px}
.edge-in{stroke:#fff;stroke-width:2px}
.plate rect{fill:#000}.plate text{fill:#fff;font-family:system-ui,sans-serif}
.hero{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,3fr);gap:24px;align-items:start;margin:16px 0 0}
.hero .shot{border-radius:8px;width:auto;max-width:100%;max-height:420px;background:none}
.hero .said,.account>.said{font-size:1.5rem;line-height:1.3;overflow-wrap:anywhere}
.sides{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:24px;margin-top:8px}
.words{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,225px),1fr));gap:16px;margin:16px 0 0;
padding:0;list-style:none}.words+h3{margin-top:24px}
.words.wide{grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr))}
.word>div{padding:10px 14px 14px}
.word h3{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 8px;font-size:1.1rem;
margin:0 0 6px;overflow-wrap:anywhere}
.word h3 span{font-variant-numeric:tabular-nums;white-space:nowrap}
.word dl{margin:10px 0 0;font-size:.85rem}.word dt{color:var(--soft)}
.word dd{margin:0 0 6px;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}.word dd:last-child{margin:0}
.strip{display:block;width:100%;height:26px;background:var(--line);border-radius:3px;fill:var(--mark);margin:3px 0}
.key{display:inline-block;width:64px;height:.8em;border-radius:3px;margin:0 4px;vertical-align:-1px;
background:linear-gradient(90deg,transparent,var(--heat));border:1px solid var(--line);print-color-adjust:exact}
@media screen and (max-width:760px){.more{display:block}.hero{gap:16px}
.hero,.sides{grid-template-columns:minmax(0,1fr)}}
@media print{:root{color-scheme:light}main{max-width:none;padding:0}figure,article,.word{break-inside:avoid}
.meter,.meter i,.strip{print-color-adjust:exact}}
"""


def page(title: str, body: str) -> str:
    """A whole HTML document; `title` is text, `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def scrolling_table(name: str, heads: Sequence[str], rows: str) -> str:
    """A table that scrolls sideways where it is wider than the page; `rows` is HTML."""
    head = "".join(f'<th scope="col">{text(one)}</th>' for one in heads)
    return (
        f'<p class="more" aria-hidden="true">scroll sideways for more →</p>'
        f'<div class="scroll" role="region" aria-label="{text(name)}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def text(value: str) -> str:
    """Text from anywhere as HTML; bytes of a file name that are no text become question marks."""
    return escape(value.encode("utf-8", "replace").decode("utf-8"))


def small_jpeg(image: Image.Image, *, side: int = 480) -> bytes:
    """An RGB image as a JPEG file, at most `side` pixels wide and high."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=82)
    return file.getvalue()


def thumbnail(image: Image.Image, *, side: int = 480) -> str:
    """The same as a `data:` address."""
    return "data:image/jpeg;base64," + base64.b64encode(small_jpeg(image, side=side)).decode("ascii")
