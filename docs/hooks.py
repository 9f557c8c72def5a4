"""Hooks of the documentation's site: one language per page, in its menu and its labels."""

from types import SimpleNamespace
from typing import Any

CHINESE = "中文"  # the title of the menu's part that holds the Chinese pages


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """Give a page the menu, the labels and the `lang` attribute of its own language.

    Browsers choose the glyphs of a Chinese character by that attribute.
    """
    chinese = page.file.src_uri.startswith("zh/")
    (part,) = [item for item in nav.items if item.title == CHINESE]
    items = part.children if chinese else [item for item in nav.items if item is not part]
    homepage = items[0] if chinese else nav.homepage
    context["nav"] = SimpleNamespace(items=items, pages=nav.pages, homepage=homepage)
    config.theme["language"] = "zh" if chinese else "en"
    return context
