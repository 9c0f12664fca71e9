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
autodoc_default_options = {"members": True, "member-order": "bysource", "exclude-members": "__init__, __new__"}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
_OF_MODELS = frozenset({"problems", "value", "named", "model_config", "model_post_init", *dir(BaseModel)})


def _skip(app, what, name, obj, skip, options):  # type: ignore[no-untyped-def]
    """Leave out what a model has beside its fields."""
    return True if name in _OF_MODELS else None


def setup(app):  # type: ignore[no-untyped-def]
    app.connect("autodoc-skip-member", _skip)
