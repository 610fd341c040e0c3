"""Hook of mkdocs: files outside of docs/ to which pages link are part of the site, and no asset is from another host.

In the site the contents of docs/ and of the repository's root are in one folder: links are changed to match.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
_OUTSIDE_LINK = re.compile(r"\]\(\.\./([^)#]+)")
_FOREIGN_ASSET = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages in the root, and files to which pages of docs/ link."""
    for path in sorted({*ROOT_PAGES, *_linked_files()}):
        if (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Change links between docs/ and the root."""
    prefix = "](docs/" if page.file.src_uri in ROOT_PAGES else "](../"
    return markdown.replace(prefix, "](")


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Fail if a page loads an asset from another host."""
    if found := _FOREIGN_ASSET.search(output):
        raise PluginError(f"{page.file.src_uri}: asset of another host: {found[0]}")
    return output


def _linked_files() -> Iterator[str]:
    for page in (ROOT / "docs").glob("*.md"):
        yield from _OUTSIDE_LINK.findall(page.read_text("utf-8"))
