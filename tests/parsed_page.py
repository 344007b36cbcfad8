"""A page of the report as a parser reads it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags in order, words by section and by figure; open tags must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.stack: list[tuple[str, str]] = []
        self.words: dict[str, str] = {}
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        found = {k: v or "" for k, v in attrs}
        self.tags.append((tag, found))
        if tag not in VOID:
            self.stack.append((tag, found.get("id", "")))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop()[0] == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        for _, identifier in self.stack:
            self.words[identifier] = self.words.get(identifier, "") + data

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] for _, attrs in self.tags if name in attrs]
