"""Pages of headings, text, tables and pictures, written as Markdown and as HTML."""

import html
from collections.abc import Sequence
from typing import NamedTuple


class Heading(NamedTuple):
    """A heading; level 1 is the page's title."""

    text: str
    level: int = 2


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Table(NamedTuple):
    """A table: the columns' names, and rows of cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Picture(NamedTuple):
    """An image file beside the page, and what it shows."""

    file: str
    caption: str


Block = Heading | Text | Table | Picture


def markdown(blocks: Sequence[Block]) -> str:
    r"""The page as Markdown.

    Example:
        >>> print(markdown([Heading("A"), Table(["x", "y"], [["1", "a|b"]])]))
        ## A
        <BLANKLINE>
        | x | y |
        |---|---|
        | 1 | a\|b |
        <BLANKLINE>
    """
    return "\n\n".join(_as_markdown(block) for block in blocks) + "\n"


def html_page(blocks: Sequence[Block]) -> str:
    """The page as HTML that needs no other file but its pictures.

    Example:
        >>> "<h2>a &lt; b</h2>" in html_page([Heading("a < b")])
        True
    """
    titles = [block.text for block in blocks if isinstance(block, Heading)]
    body = "\n".join(_as_html(block) for block in blocks)
    return _FRAME.format(title=html.escape(titles[0] if titles else ""), body=body)


def _as_markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Picture(file, caption):
            return f"![{caption}]({file})"
        case Table(head, rows):
            cells = [[cell.replace("|", r"\|") for cell in row] for row in (head, *rows)]
            first, *others = (f"| {' | '.join(row)} |" for row in cells)
            return "\n".join([first, "|" + "---|" * len(head), *others])


def _as_html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Text(text):
            return f"<p>{html.escape(text)}</p>"
        case Picture(file, caption):
            image = f'<img src="{html.escape(file)}" alt="">'
            return f"<figure>{image}<figcaption>{html.escape(caption)}</figcaption></figure>"
        case Table(head, rows):
            lines = [_html_row(head, "th"), *(_html_row(row, "td") for row in rows)]
            return "\n".join(["<table>", *lines, "</table>"])


def _html_row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


_FRAME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse }}
th, td {{ border: 1px solid #ccc; padding: .2em .6em; text-align: right }}
th:first-child, td:first-child {{ text-align: left }}
img {{ max-width: 100% }}
figure {{ margin: 1em 0 }}
</style>
{body}
</html>
"""
