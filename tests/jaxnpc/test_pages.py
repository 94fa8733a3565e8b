"""Pages say the same in both formats, whatever the text holds."""

import html.parser

from jaxnpc.pages import Heading, Picture, Table, Text, html_page, markdown

NASTY = 'a < b & "c" | d'
BLOCKS = [
    Heading(NASTY, 1),
    Text(NASTY),
    Table(["x", NASTY], [["1", "2"], [NASTY, "<td>"]]),
    Picture("curves.png", NASTY),
]


class Reader(html.parser.HTMLParser):
    """What a browser would see: the tags, which must be balanced, and the text in each."""

    VOID = ("meta", "img", "html")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.pictures = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.pictures.append(dict(attrs)["src"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and data.strip():
            self.seen.append((self.open[-1], data))


def test_html_shows_all_text_in_its_place():
    reader = Reader()
    reader.feed(html_page(BLOCKS))
    assert not reader.open
    seen = [pair for pair in reader.seen if pair[0] != "style"]
    cells = [("th", "x"), ("th", NASTY), ("td", "1"), ("td", "2"), ("td", NASTY), ("td", "<td>")]
    before = [("title", NASTY), ("h1", NASTY), ("p", NASTY)]
    assert seen == [*before, *cells, ("figcaption", NASTY)]
    assert reader.pictures == ["curves.png"]


def test_markdown_tables_keep_their_columns():
    title, text, table, picture = markdown(BLOCKS).strip().split("\n\n")
    assert title == f"# {NASTY}"
    assert text == NASTY
    assert picture == f"![{NASTY}](curves.png)"
    for line in table.splitlines():
        assert line.replace(r"\|", "").count("|") == 3
    assert len(table.splitlines()) == 4


def test_an_empty_page():
    assert markdown([]) == "\n"
    assert "<title></title>" in html_page([])
