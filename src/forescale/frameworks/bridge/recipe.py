"""One recipe of a file of several: the function that is wanted, with those of the file that it starts from."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from forescale.errors import ReaderError, UnknownNameError


def chosen(tree: ast.Module, path: Path, wanted: str | None, sets: Callable[[ast.AST], bool]) -> ast.Module:
    """Return a file with one recipe, names of plain values put in; `sets` says whether a function sets fields.

    Raises
    ------
    ReaderError
        If there are several recipes and none is wanted.
    UnknownNameError
        If there is none of that name.
    """
    every = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and sets(node)}
    public = [name for name in every if not name.startswith("_")]
    if wanted is not None and wanted not in public:
        raise UnknownNameError(f"recipe of {path}", wanted, public)
    if wanted is None and len(public) > 1:
        problem = f"it holds {len(public)} recipes; say which with --var config=NAME: {', '.join(public)}"
        raise ReaderError(f"{path}, line {every[public[0]].lineno}", problem)
    if public:
        kept = _with_bases(every, wanted or public[0])
        tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
        tree.body += [every[name] for name in kept]
    found: ast.Module = _Plain().visit(tree)
    return found


def _with_bases(every: dict[str, ast.FunctionDef], name: str) -> list[str]:
    """Return a function's name after those of the file's functions that it calls."""
    found: list[str] = []

    def follow(each: str, within: tuple[str, ...]) -> None:
        called = [node.func for node in ast.walk(every[each]) if isinstance(node, ast.Call)]
        for func in called:
            if isinstance(func, ast.Name) and func.id in every and func.id not in within:
                follow(func.id, (*within, func.id))
        found.append(each)

    follow(name, (name,))
    return list(dict.fromkeys(found))


class _Plain(ast.NodeTransformer):
    """Puts in what names and fields were set to, where that is a plain value, and works out products and the like."""

    def __init__(self) -> None:
        self.known: dict[str, ast.expr] = {}

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = self.visit(node.value)
        for target in node.targets:
            self.known.pop(ast.unparse(target), None)
            if isinstance(node.value, ast.Constant):
                self.known[ast.unparse(target)] = node.value
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self.known.get(ast.unparse(node), node) if isinstance(node.ctx, ast.Load) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Mult) and all(
            isinstance(each, ast.Constant) and type(each.value) is int for each in (left, right)
        ):
            return ast.copy_location(ast.Constant(left.value * right.value), node)
        return node
