"""What mkdocs.yml adds to docs/: files of the repository that pages link to, under links that lead to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "src" / "forescale" / "web" / "static" / "learn"
"""Interactive pictures, which the page of `forescale serve` shows as well; the book has them in learn/pictures."""
SCRIPTS = re.compile(r'<script defer src="/static/learn/(.+)"></script>')
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "data/published/README.md", "examples")
"""What of the repository the book holds beside docs/."""


def beside() -> list[Path]:
    """Return these files, from the root of the repository."""
    value = [ROOT / name for name in BESIDE]
    paths = [path for item in value for path in (item.iterdir() if item.is_dir() else [item])]
    return sorted(path.relative_to(ROOT) for path in paths if path.is_file())


def relinked(text: str, page: str) -> str:
    """Return the text of a page with links as they lead in the book, where docs/ is the root.

    `page` is where it lies there: guides/fit.md, or CHANGELOG.md, which lies beside docs/ in the repository.
    """
    if page in BESIDE:
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", text)
    up = "../" * page.count("/")
    names = "|".join(re.escape(name) for name in BESIDE)
    return re.sub(rf"\]\({re.escape(up)}\.\./(?={names})", f"]({up}", text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files beside docs/, and the interactive pictures."""
    from mkdocs.structure.files import File

    for path in sorted({*PICTURES.glob("*.js"), *PICTURES.glob("*.css")}):
        place = f"learn/pictures/{path.name}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for path in beside():
        files.append(File.generated(config, path.as_posix(), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead to them."""
    return relinked(markdown, page.file.src_uri)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Load the pictures, in the order of their page, where a page of the book has any."""
    if "data-picture=" not in output:
        return output
    names = SCRIPTS.findall((PICTURES / "index.html").read_text(encoding="utf-8"))
    up = "../" * page.file.dest_uri.count("/") + "learn/pictures/"
    tags = [
        f'<link rel="stylesheet" href="{up}learn.css">',
        *(f'<script defer src="{up}{name}"></script>' for name in names),
    ]
    return output.replace("</head>", "".join(tags) + "</head>", 1)
