"""The preprocessor of the site in book.toml, and the check of the built site. Run by `make book`.

Without arguments it is the preprocessor: it reads the pages as JSON on standard input, and writes them to standard
output. README.md becomes the first page. Links between pages stay links between pages; links to other files of the
repository become links to the repository.

With `check FOLDER` it checks that every link of the site in FOLDER leads to an existing page and heading.
"""
import html.parser
import json
import os
import pathlib
import posixpath
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/slidegate/slidegate/blob/main/"
# The pages of two files: the first page of the site, and the list of all pages.
PAGES = {"README.md": "index.md", "docs": "documentation.md", "docs/README.md": "documentation.md"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def site_link(target, source, page):
    """Returns the target of a link on the site. `source` is the file with the link, `page` its path in the site."""
    path, hash_sign, heading = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return target
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if file not in PAGES and not file.startswith("docs/"):
        return REPOSITORY + file + hash_sign + heading
    file = PAGES.get(file) or file.removeprefix("docs/")
    return posixpath.relpath(file, posixpath.dirname(page) or ".") + hash_sign + heading


def convert(text, source, page):
    """Returns the text of a page with corrected links. Code blocks are not changed."""
    in_code, lines = False, []
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            line = LINK.sub(lambda link: link[1] + site_link(link[2], source, page) + link[3], line)
        lines.append(line)
    return "\n".join(lines)


def convert_items(items):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            chapter = item["Chapter"]
            source = "docs/" + chapter["source_path"]
            chapter["path"] = PAGES.get(source, chapter["path"])
            chapter["content"] = convert(chapter["content"], source, chapter["path"])
            convert_items(chapter["sub_items"])


def preprocess():
    _, book = json.load(sys.stdin)
    items = book["items"] if "items" in book else book["sections"]
    convert_items(items)
    introduction = {
        "name": "Introduction",
        "content": convert((ROOT / "README.md").read_text(), "README.md", "index.md"),
        "number": None,
        "sub_items": [],
        "path": "index.md",
        "source_path": None,
        "parent_names": [],
    }
    items.insert(0, {"Chapter": introduction})
    json.dump(book, sys.stdout)


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        for name in ("href", "src"):
            if attributes.get(name) and tag != "base":
                self.links.append(attributes[name])


def check(folder):
    folder = pathlib.Path(folder).resolve()
    # print.html has all pages, and 404.html is served under any path.
    paths = [path for path in folder.rglob("*.html") if path.name not in ("print.html", "404.html", "toc.html")]
    pages = {path: Page(path.read_text()) for path in paths}
    broken, count = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
            if not target.exists():
                broken.append(f"{path.relative_to(folder)}: {link}: no such page")
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.relative_to(folder)}: {link}: no such heading")
    print("\n".join(broken), f"{len(pages)} pages, {count} links, {len(broken)} broken", sep="\n", file=sys.stderr)
    sys.exit(1 if broken or len(pages) < 50 else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(sys.argv[2])
    elif sys.argv[1:2] != ["supports"]:
        preprocess()
