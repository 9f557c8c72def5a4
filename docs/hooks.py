"""Hooks of the documentation's site."""

from typing import Any


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Declare the language of the Chinese pages: browsers choose the glyphs by it."""
    if page.file.src_uri.startswith("zh/"):
        return output.replace('<html lang="en"', '<html lang="zh-CN"', 1)
    return output
