# SPDX-License-Identifier: Apache-2.0
"""Documentation files to plain text: HTML, reStructuredText, POD and info.

Markup that is text (rst, pod, info) stays as it is; HTML keeps headings, list items and preformatted blocks and loses
navigation. Not a renderer: what a language model reads matters here, not what it looks like.
"""
import gzip
import re
from html.parser import HTMLParser

SKIPPED_TAGS = {"script", "style", "nav", "header", "footer", "svg", "button", "form", "head", "noscript"}
SKIPPED_CLASSES = ("sphinxsidebar", "related", "navheader", "navfooter", "headerlink", "footer", "breadcrumb",
                   "navigation", "menu", "mark", "toc", "preamble", "nav-panel")
BLOCK_TAGS = {"p", "div", "ul", "ol", "dl", "dt", "table", "tr", "section", "article", "blockquote", "main", "br",
              "hr", "tbody", "thead", "caption"}
HEADINGS = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "h5": "#### ", "h6": "#### "}
VOID_TAGS = {"br", "hr", "img", "meta", "link", "input", "col", "wbr", "area", "base"}


class _Html(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.pieces = []
        self.skipped_tag = None
        self.skipped_depth = 0
        self.pre_depth = 0

    def handle_starttag(self, tag, attributes):
        if self.skipped_tag:
            self.skipped_depth += tag == self.skipped_tag
            return
        classes = (dict(attributes).get("class") or "").lower()
        if tag not in VOID_TAGS and (tag in SKIPPED_TAGS or any(name in classes.split() for name in SKIPPED_CLASSES)):
            self.skipped_tag, self.skipped_depth = tag, 1
            return
        if tag == "pre":
            self.pre_depth += 1
            self.pieces.append("\n\n")
        elif tag in HEADINGS:
            self.pieces.append("\n\n" + HEADINGS[tag])
        elif tag == "li":
            self.pieces.append("\n- ")
        elif tag == "dd":
            self.pieces.append("\n    ")
        elif tag in ("td", "th"):
            self.pieces.append("  ")
        elif tag == "p":
            self.pieces.append("\n\n")
        elif tag in BLOCK_TAGS:
            self.pieces.append("\n")

    def handle_endtag(self, tag):
        if self.skipped_tag:
            self.skipped_depth -= tag == self.skipped_tag
            if self.skipped_depth == 0:
                self.skipped_tag = None
            return
        if tag == "pre":
            self.pre_depth = max(0, self.pre_depth - 1)
        if tag == "pre" or tag in HEADINGS or tag == "p":
            self.pieces.append("\n\n")
        elif tag in BLOCK_TAGS and tag not in VOID_TAGS:
            self.pieces.append("\n")

    def handle_data(self, data):
        if not self.skipped_tag:
            self.pieces.append(data if self.pre_depth else re.sub(r"[ \t\r\n]+", " ", data))


def html_to_text(source):
    parser = _Html()
    parser.feed(source)
    parser.close()
    return "".join(parser.pieces)


def tidy(text):
    """One form of whitespace: no trailing blanks, at most one empty line, no control characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " " * 8).replace("\f", "\n")
    text = text.replace("\u00a0", " ").replace("\u00b6", "").replace("\u2581", "_")
    text = re.sub("[\x00-\x08\x0b-\x1f\x7f\u00ad\u200b\u2060\ufeff]", "", text)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = re.sub(r"(?m)^ (?=\S)", "", text)
    return text.strip() + "\n"


def read_document(path):
    """Text of one documentation file, by its name."""
    with (gzip.open(path) if path.endswith(".gz") else open(path, "rb")) as file:
        text = file.read().decode("utf-8", errors="replace")
    if path.endswith((".html", ".htm")):
        text = html_to_text(text)
    elif ".info" in path:
        text = re.sub(r"\x1f\n?(File: [^\n]*)?", "", text)
        text = re.sub(r"(?ms)^(Indirect|Tag Table):.*\Z", "", text)
    return tidy(text)
