"""Sphinx configuration: Markdown pages (MyST) in the furo theme. ``make docs`` builds them; a warning is an error."""

project = "supervisor-runtime"
copyright = "the supervisor-runtime maintainers"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = "supervisor-runtime"

# Headings have the anchors that GitHub gives them, so that one link works there and here.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
