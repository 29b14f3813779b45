"""A hook of mkdocs: pages that mkdocs.yml gives no place come last, under "More".

So a new page is never lost, and needs no line there to be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def on_config(config: Any) -> None:
    """Called by mkdocs when it has read mkdocs.yml."""
    listed = set(pages(config.nav))
    rest = sorted(p.name for p in Path(config.docs_dir).glob("*.md") if p.name not in listed)
    if rest:
        config.nav.append({"More": rest})


def pages(nav: Any) -> Iterator[str]:
    """The files of a navigation, at any depth."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for part in nav.values():
            yield from pages(part)
    else:
        for part in nav:
            yield from pages(part)
