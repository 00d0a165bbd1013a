"""Captions as the rows of a Parquet file."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from xlan.batch.tables import arrow
from xlan.caption_json import caption_record
from xlan.errors import ImageError
from xlan.types import Caption


def caption_row(image_id: str, name: str, found: Caption | ImageError) -> dict[str, Any]:
    """One picture's row: `id`, `image`, `caption`, `confidence`, `score`, `words`, `others`, `error`."""
    row: dict[str, Any] = {"id": image_id, "image": name}
    if isinstance(found, ImageError):
        return {**row, "error": str(found).encode("utf-8", "backslashreplace").decode()}
    record = caption_record(found, explained=False)
    keys = ("text", "probability", "confidence")
    words = [{key: word[key] for key in keys} for word in record["words"]]
    return {**row, **{k: record[k] for k in ("caption", "confidence", "score", "others")}, "words": words}


def to_parquet(rows: Sequence[Mapping[str, Any]], made_with: Mapping[str, Any]) -> bytes:
    """The bytes of a Parquet file with these rows; `made_with` is in its metadata under `xlan`.

    The same rows give the same bytes.
    """
    pa = arrow()
    number, text = pa.float64(), pa.string()
    word = pa.struct([("text", text), ("probability", number), ("confidence", number)])
    other = pa.struct([("caption", text), ("confidence", number), ("score", number)])
    schema = pa.schema(
        [
            ("id", text),
            ("image", text),
            ("caption", text),
            ("confidence", number),
            ("score", number),
            ("words", pa.list_(word)),
            ("others", pa.list_(other)),
            ("error", text),
        ],
        metadata={"xlan": json.dumps(dict(made_with), sort_keys=True)},
    )
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    file = io.BytesIO()
    pa.parquet.write_table(pa.table(columns, schema=schema), file)
    return file.getvalue()
