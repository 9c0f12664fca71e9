"""Sphinx configuration: Markdown pages (MyST) in the furo theme. ``make docs`` builds them; a warning is an error."""

from pydantic import BaseModel
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.rst import escape

import supervisor

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


def _describe_fields(model: type[BaseModel]) -> None:
    """Let the descriptions of a model's own fields count as their docstrings, which autodoc reads from the source."""
    analyzer = ModuleAnalyzer.for_module(model.__module__)
    analyzer.analyze()
    for name in model.__annotations__.keys() & model.model_fields.keys():
        if text := model.model_fields[name].description:
            # One word in the first line: napoleon takes a text before a colon there for the type of the field.
            analyzer.attr_docs[model.__qualname__, name] = [*escape(text).split(" ", 1), ""]


def setup(app):  # type: ignore[no-untyped-def]
    for one in (getattr(supervisor, name) for name in dir(supervisor)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            _describe_fields(one)
    app.connect("autodoc-skip-member", _skip)
