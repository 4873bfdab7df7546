"""The docstrings below the fields of configuration classes, which Python itself does not keep."""

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from types import MappingProxyType

from metta.train.parsing.schema import groups_of

__all__ = ["field_docs", "group_doc", "setting_docs"]


@functools.cache
def field_docs(kind: type) -> Mapping[str, str]:
    """Field name -> the string below it, for the fields of one class; read from its source."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:  # installed without sources: help is shorter
        return MappingProxyType({})
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, below in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            doc = _text(below)
            if doc:
                docs[field.target.id] = doc
    return MappingProxyType(docs)


def group_doc(kind: type) -> str:
    """The first line of a configuration class's own docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


@functools.cache
def setting_docs(kind: type) -> Mapping[str, str]:
    """Path -> docstring of every setting and group below `kind`."""
    docs = dict(field_docs(kind))
    for path, group in groups_of(kind).items():
        docs.setdefault(path, group_doc(group))
        docs |= {f"{path}.{name}": doc for name, doc in field_docs(group).items()}
    return MappingProxyType(docs)


def _text(node: ast.stmt) -> str:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return ""
    return inspect.cleandoc(str(node.value.value))
