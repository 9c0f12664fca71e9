"""Sphinx configuration: Markdown pages (MyST) in the furo theme. ``make docs`` builds them; a warning is an error."""

from pydantic import BaseModel

project = "supervisor-runtime"
copyright = "the supervisor-runtime maintainers"
extensions = ["myst_parser", "sphinxcontrib.mermaid", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "supervisor-runtime"

# Headings have the anchors that GitHub gives them, so that one link works there and here.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# docs/reference/api.md: signatures of methods, and the fields of models instead of their constructors.
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
_INTERNAL = {"problems", "value", "named", "of_function", "agent_options", "line_mapping", "provides", "needs"}
_INTERNAL |= {"monitor_settings", "at_least", "review_of", "agent_configs", *dir(BaseModel)}


def _skip(app, what, name, obj, skip, options):  # type: ignore[no-untyped-def]
    """Leave out what models and values have for the packages of the supervisor, and what pydantic adds."""
    return True if name in _INTERNAL or name.startswith("__") else None


def setup(app):  # type: ignore[no-untyped-def]
    app.connect("autodoc-skip-member", _skip)
