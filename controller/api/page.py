"""The read-only page at `/`: one file, no data of its own, everything over the REST API by its script.

Its policy allows exactly its own script and style, by their digests, and connections to this origin.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

_HTML = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")

router = APIRouter()


def _digest(tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", _HTML, re.DOTALL)
    assert found is not None, f"page.html has no <{tag}>"
    return "'sha256-" + base64.b64encode(hashlib.sha256(found.group(1).encode()).digest()).decode() + "'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_digest('script')}; style-src {_digest('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/", include_in_schema=False)
async def page() -> HTMLResponse:
    return HTMLResponse(_HTML, headers=HEADERS)
