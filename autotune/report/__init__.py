"""Renders results: as Markdown, as web pages, as what changed between two collections of them."""
