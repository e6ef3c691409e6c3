# SPDX-License-Identifier: Apache-2.0
"""Stage `data`: the documentation packages of PostgreSQL and Python as clean text.

Writes data/documents.jsonl ({name, split, text}) and data/sources.json (versions, licences).
"""
import gzip
import hashlib
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
PACKAGES = {
    "postgresql-doc-15": ("usr/share/doc/postgresql-doc-15/html", "PostgreSQL License"),
    "python3.11-doc": ("usr/share/doc/python3.11/html", "PSF License Version 2"),
}
# Indexes, tables of contents and pages of links hold no prose.
UNWANTED = re.compile(r"(^|/)(genindex|bookindex|contents|py-modindex|search|index|biblio"
                      r"|sql-keywords-appendix|download|opensearch)[^/]*\.html")
SKIPPED_TAGS = {"script", "style", "nav", "head", "form"}
SKIPPED_CLASSES = {"navheader", "navfooter", "sphinxsidebar", "related", "headerlink", "toc",
                   "footer", "mobile-nav", "menu-wrapper", "copyright", "list-of-tables",
                   "list-of-figures", "list-of-examples", "linenos"}
BLOCKS = {"p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "dt", "dd", "table",
          "blockquote", "pre", "section", "caption", "hr"}
VOID = {"br", "hr", "img", "input", "link", "meta", "col", "wbr", "area", "base"}
HELD_OUT_PERCENT, VALIDATION_PERCENT = 3, 2


class TextExtractor(HTMLParser):
    """Collects paragraphs. Code keeps its line breaks and indentation; prose is one line each."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.paragraphs, self.buffer, self.stack = [], [], []
        self.skipped = self.pre = 0

    def flush(self):
        text = "".join(self.buffer)
        self.buffer = []
        if self.pre:
            text = "\n".join(line.rstrip() for line in text.expandtabs(8).strip("\n").split("\n"))
        else:
            text = re.sub(r"[ \t\r\f\v\n\xa0]+", " ", text.replace("\r", "\n"))
            text = re.sub(r" *\x00[ \x00]*", "\n", text)
        if text.strip("- |\n"):
            self.paragraphs.append(text if self.pre else text.strip(" |\n"))

    def handle_starttag(self, tag, attrs):
        if tag == "br":
            self.buffer.append("\n" if self.pre else "\x00")
        if tag in VOID:
            return
        classes = set((dict(attrs).get("class") or "").split())
        skip = tag in SKIPPED_TAGS or bool(classes & SKIPPED_CLASSES)
        self.stack.append((tag, skip))
        self.skipped += skip
        if self.skipped:
            return
        bullet = "".join(self.buffer) == "- "
        if tag in BLOCKS and not self.pre and not bullet and not self.in_cell(self.stack[:-1]):
            self.flush()
        if tag == "pre":
            self.pre += 1
        elif tag == "li":
            self.flush()
            self.buffer.append("- ")
        elif tag == "tr":
            self.flush()
        elif tag in ("td", "th") and "".join(self.buffer).strip():
            self.buffer.append(" | ")

    @staticmethod
    def in_cell(stack):
        """Blocks inside a table cell stay in the row's paragraph."""
        return any(tag in ("td", "th") for tag, _ in stack)

    def handle_endtag(self, tag):
        if tag in VOID or tag not in [t for t, _ in self.stack]:
            return
        while True:
            top, skip = self.stack.pop()
            self.close(top)
            self.skipped -= skip
            if top == tag:
                return

    def close(self, tag):
        if self.skipped:
            return
        ends = tag in BLOCKS or tag in ("li", "tr")
        if tag == "pre" or (ends and not self.pre and not self.in_cell(self.stack)):
            self.flush()
        elif ends and not self.pre:
            self.buffer.append("\x00")
        if tag == "pre":
            self.pre -= 1

    def handle_data(self, data):
        if not self.skipped:
            self.buffer.append(data.replace("¶", "") if self.pre else data)


def unpack(package):
    """Downloads and unpacks one Debian package; returns (version, root folder)."""
    folder = DATA / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(package + "_*.deb")):
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
    archive = sorted(folder.glob(package + "_*.deb"))[-1]
    root = folder / package
    subprocess.run(["dpkg", "-x", archive, root], check=True)
    version = subprocess.run(["dpkg-deb", "-f", archive, "Version"], check=True,
                             capture_output=True, text=True).stdout.strip()
    return version, root


def paragraphs_of(path):
    parser = TextExtractor()
    raw = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    parser.feed(raw.decode("utf-8", "replace"))
    parser.flush()
    return parser.paragraphs


def split_of(name):
    percent = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100
    if percent < HELD_OUT_PERCENT:
        return "heldout"
    return "validation" if percent < HELD_OUT_PERCENT + VALIDATION_PERCENT else "train"


def pages(package, root):
    """(name, paragraphs) of each page; symbolic links would repeat a page."""
    top = root / PACKAGES[package][0]
    for path in sorted(top.rglob("*.html*")):
        name = f"{package}/{path.relative_to(top)}"
        if path.is_file() and not path.is_symlink() and not UNWANTED.search(name):
            yield name, paragraphs_of(path)


def without_repeats(documents):
    """Drops paragraphs seen before. Training text goes first, so what is held out is unseen."""
    seen, order = set(), {"train": 0, "validation": 1, "heldout": 2}
    for name, split, paragraphs in sorted(documents, key=lambda d: (order[d[1]], d[0])):
        kept = []
        for paragraph in paragraphs:
            key = hashlib.sha256(re.sub(r"\W+", " ", paragraph.lower()).encode()).digest()
            if len(paragraph) < 40 or key not in seen:
                kept.append(paragraph)
            seen.add(key)
        text = "\n\n".join(kept)
        if len(text) > 200:
            yield {"name": name, "split": split, "text": text}


def main():
    documents, sources = [], {}
    for package, (_, licence) in PACKAGES.items():
        version, root = unpack(package)
        sources[package] = {"version": version, "licence": licence}
        documents += [(name, split_of(name), text) for name, text in pages(package, root)]
    total = dict.fromkeys(("train", "validation", "heldout"), 0)
    with open(DATA / "documents.jsonl", "w") as out:
        for document in without_repeats(documents):
            total[document["split"]] += len(document["text"].encode())
            out.write(json.dumps(document) + "\n")
    (DATA / "sources.json").write_text(json.dumps({"packages": sources, "bytes": total}, indent=1))
    print("data:", sources, total)


if __name__ == "__main__":
    main()
