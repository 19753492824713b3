"""Finds dead links in the built site: `python docs/pages/links.py docs/_build/html`.

Every link to a page of the site, to a place on one, to a picture or a style is followed; links to
other sites are not. Sphinx checks what it resolves itself, and not what pages write as HTML. Read
next: `site_pages.py`.
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links of a page, and the places on it that others can link to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


@cache
def page(path: Path) -> _Page:
    """A page of the site, read once."""
    return _Page(path.read_text(encoding="utf-8"))


def dead_links(site: Path) -> list[str]:
    """Each as "page: link"."""
    found = []
    for path in sorted(site.rglob("*.html")):
        for link in page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            missing = not target.is_file()
            if not missing and place and target.suffix == ".html":
                missing = place not in page(target).places
            if missing:
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def main() -> int:
    """Prints dead links; the status says whether there are any."""
    dead = dead_links(Path(sys.argv[1]))
    print("\n".join(dead) or "no dead link")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
