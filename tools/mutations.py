"""Small changes that break a program: where a source has them, and the source with one of them.

    for mutation in find_mutations(source):
        broken = apply_mutation(source, mutation)

A mutation is known by its function, the text of its statement and its place in it, not by its file
and line. The same one is therefore found again after code has moved.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}  # fmt: skip
TEXTS = ast.JoinedStr | ast.FormattedValue  # Python 3.11 gives wrong positions for what they hold
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
UNTOUCHED = ast.Raise | ast.Assert | ast.Import | ast.ImportFrom
"""Statements that are left alone: words of errors, and what only we can break."""


@dataclass(frozen=True)
class Mutation:
    """One change: what a replay needs to find it in another checkout, and what a person reads."""

    function: str
    """Qualified name of the function."""
    statement: str
    """The statement, unparsed; of a block only its first line."""
    occurrence: int
    """How many equal statements stand before it in the function."""
    place: int
    """Which of the statement's mutations this is."""
    kind: str
    change: str
    line: int
    """Where the change stands in this source."""
    statement_line: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def identity(self) -> tuple[str, str, int, int, str]:
        return (self.function, self.statement, self.occurrence, self.place, self.change)


class _Site(NamedTuple):
    kind: str
    node: ast.expr | ast.stmt
    text: str


def find_mutations(source: str) -> list[Mutation]:
    """Every mutation of the functions of a source, in its order."""
    return [mutation for mutation, _ in _located(source)]


def apply_mutation(source: str, mutation: Mutation) -> str:
    """The source with one change; every line keeps its number."""
    for found, site in _located(source):
        if found.identity == mutation.identity:
            return _replace(source, site)
    raise ValueError(f"{mutation.change!r} is not in {mutation.function} of this source")


def _located(source: str) -> Iterator[tuple[Mutation, _Site]]:
    seen: Counter[tuple[str, str]] = Counter()
    for function, statement in _statements(ast.parse(source).body, "", inside=False):
        text = ast.unparse(_head(statement))
        occurrence = seen[function, text]
        seen[function, text] += 1
        for place, site in enumerate(_sites(statement)):
            change = f"{ast.unparse(site.node)}  ->  {site.text}"
            if isinstance(site.node, ast.If):
                change = f"if {ast.unparse(site.node.test)}  ->  {site.text}"
            lines = (site.node.lineno, statement.lineno)
            yield Mutation(function, text, occurrence, place, site.kind, change, *lines), site


def _statements(body: list[Any], function: str, *, inside: bool) -> Iterator[tuple[str, ast.stmt]]:
    """Every statement inside a function, with the function's name."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{function}.{statement.name}".lstrip(".")
            is_class = isinstance(statement, ast.ClassDef)
            yield from _statements(statement.body, name, inside=not is_class)
            continue
        if inside and isinstance(statement, ast.stmt) and not isinstance(statement, UNTOUCHED):
            yield function, statement
        for block in BLOCKS:
            yield from _statements(getattr(statement, block, []), function, inside=inside)


def _head(statement: ast.stmt) -> ast.stmt:
    """The statement without the blocks below it."""
    fields = {name: getattr(statement, name) for name in statement._fields}
    for block in BLOCKS:
        if block in fields:
            fields[block] = [ast.Pass()] if block == "body" else []
    head = type(statement)(**fields)
    return ast.fix_missing_locations(ast.copy_location(head, statement))


def _sites(statement: ast.stmt) -> Iterator[_Site]:
    match statement:
        case ast.If():
            yield _Site("negated if", statement, f"if not ({ast.unparse(statement.test)})")
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield _Site("returns None", statement, "return None")
        case ast.Expr(value=ast.Call()):
            yield _Site("deleted call", statement, "pass")
        case ast.AugAssign(op=ast.Add() | ast.Sub() as op):
            changed = ast.AugAssign(statement.target, OPERATORS[type(op)](), statement.value)
            yield _Site("operator", statement, ast.unparse(changed))
    for expression in _expressions(statement):
        yield from _expression_sites(expression)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of a statement, but not those of the blocks below it, annotations or texts."""
    for name, child in ast.iter_fields(node):
        if name in (*BLOCKS, "annotation") and not isinstance(node, ast.expr):
            continue
        for one in child if isinstance(child, list) else [child]:
            if isinstance(one, TEXTS) or not isinstance(one, ast.AST):
                continue
            if isinstance(one, ast.expr):
                yield one
            yield from _expressions(one)


def _expression_sites(node: ast.expr) -> Iterator[_Site]:
    match node:
        case ast.Compare(left=left, ops=operators, comparators=others):
            for index, operator in enumerate(operators):
                changed = [*operators]
                changed[index] = COMPARISONS[type(operator)]()
                yield _Site("comparison", node, _unparse(ast.Compare(left, changed, others)))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            if not any(isinstance(one, TEXTS) or _is_text(one) for one in (left, right)):
                swapped = ast.BinOp(left, OPERATORS[type(operator)](), right)
                yield _Site("operator", node, _unparse(swapped))
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield _Site("and/or", node, _unparse(ast.BoolOp(other, values)))
        case ast.IfExp(test=test):
            yield _Site("negated if", test, f"(not ({ast.unparse(test)}))")
        case ast.Constant(value=bool() as value):
            yield _Site("constant", node, str(not value))
        case ast.Constant(value=int() | float() as value):
            yield _Site("constant", node, repr(value + 1))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _unparse(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _replace(source: str, site: _Site) -> str:
    """Puts the text in the place of the node; a node of several lines leaves empty ones."""
    node: ast.expr | ast.stmt = site.node.test if isinstance(site.node, ast.If) else site.node
    text = site.text.removeprefix("if ")
    last_line = node.end_lineno or node.lineno
    lines = source.encode().splitlines(keepends=True)
    before = lines[node.lineno - 1][: node.col_offset]
    after = lines[last_line - 1][node.end_col_offset :]
    gap = "\n" * (last_line - node.lineno)
    # inside the brackets, where a new line does not end the statement
    text = f"{text[:-1]}{gap})" if text.endswith(")") else f"{text}{gap}"
    lines[node.lineno - 1 : last_line] = [before + text.encode() + after]
    return b"".join(lines).decode()
