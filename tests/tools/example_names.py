"""Which public names of the package no example of the pages uses.

Required are the exported names of the package and of its public modules, and the public members of
the classes among them: methods, properties, fields, members of enumerations. What is inherited
counts for the class that declares it; what a private base declares, for each public class.

A use is code that names the thing: `torchcomms.OpName.send`, a method of what was made
by a call whose result is known (return types are those of the stubs), a keyword for a field, a
class pattern, a method that a subclass overrides. An import, a
comment and prose are no uses. Whether a line is reached is not looked at. The examples run
beforehand or afterwards: this module must not know how.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "python" / "torchcomms"
MODULES = ("device_mesh", "distwrap", "functional", "hooks", "objcol")
# Named with an underscore, and yet what callers rely on: torch's bridge and meshes.
UNDERSCORED = (
    "torchcomms._comms._BackendWrapper",
    "torchcomms._comms._BackendWrapper.get_comm",
    "torchcomms._comms._is_backend_registered",
    "torchcomms.device_mesh._flatten_with_comm",
)


@dataclass(frozen=True)
class Named:
    """What a dotted name stands for: a module, a class, a function, a member of a class."""

    name: str


@dataclass(frozen=True)
class Instance:
    """An object of the class of that name."""

    of: str


Known = Named | Instance | None


def _declares(cls: type, name: str) -> bool:
    return name in vars(cls) or name in vars(cls).get("__annotations__", {})


def _members(cls: type) -> Iterator[str]:
    """Public members, inherited ones too."""
    for base in cls.__mro__[:-1]:
        if base.__module__.partition(".")[0] in ("torchcomms", "_comms"):
            names = {*vars(base), *vars(base).get("__annotations__", {})}
            # Of an enumeration, its members: it has `name` and `value` as all of them do.
            if hasattr(cls, "__members__"):
                names &= {*cls.__members__}
            yield from sorted(name for name in names if not name.startswith("_"))


class Surface:
    """The public names, and what is known of the results of calls."""

    def __init__(self) -> None:
        self.required: set[str] = set(UNDERSCORED)
        self._classes: dict[str, type] = {}
        self._returns: dict[str, str] = {}
        self._collect("torchcomms")
        for module in MODULES:
            self.required.add(f"torchcomms.{module}")
            self._collect(f"torchcomms.{module}")
        self._add_class("torchcomms._comms._BackendWrapper")
        self._by_type = {cls: name for name, cls in reversed(self._classes.items())}
        for name, cls in self._classes.items():
            if not name.startswith("torchcomms._"):
                self.required |= {self.owner(name, member) for member in _members(cls)}
        self._read_returns()

    def _collect(self, module_name: str) -> None:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            path = f"{module_name}.{name}"
            self.required.add(path)
            if isinstance(getattr(module, name), type):
                self._add_class(path)

    def _add_class(self, path: str) -> None:
        module, _, name = path.rpartition(".")
        self._classes[path] = getattr(importlib.import_module(module), name)

    def owner(self, path: str, member: str) -> str:
        """The name under which a member counts: that of the highest public class that has it."""
        cls = self._classes[path]
        for base in reversed(cls.__mro__[:-1]):
            if base in self._by_type and _declares(base, member):
                return f"{self._by_type[base]}.{member}"
        return f"{path}.{member}"

    def _read_returns(self) -> None:
        for file, module in (("_comms.pyi", ""), ("__init__.py", ""), ("distwrap.py", "distwrap.")):
            tree = ast.parse((PACKAGE / file).read_text())
            for node in tree.body:
                inner = node.body if isinstance(node, ast.ClassDef) else [node]
                prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                for made in inner:
                    if isinstance(made, ast.FunctionDef) and made.returns is not None:
                        path = f"torchcomms.{module}{prefix}{made.name}"
                        self._note(path, ast.unparse(made.returns))
        for path, cls in self._classes.items():
            for base in cls.__mro__:
                for name, text in vars(base).get("__annotations__", {}).items():
                    self._note(f"{path}.{name}", str(text))

    def _note(self, path: str, annotation: str) -> None:
        """Keeps the class that an annotation names, if it is one of ours."""
        for word in re.findall(r"\w+", annotation):
            if f"torchcomms.{word}" in self._classes:
                self._returns.setdefault(path, f"torchcomms.{word}")

    def cls(self, path: str) -> type | None:
        """The public class of that name, if it is one."""
        return self._classes.get(path)

    def result(self, path: str) -> Known:
        """What a call of a function gives, or a property."""
        made = path if self.cls(path) else self._returns.get(path)
        return Instance(made) if made else None


class Reader(ast.NodeVisitor):
    """Reads one example and notes which names it uses."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self.used: set[str] = set()
        self.names: dict[str, Known] = {}
        self._self: Known = None  # what `self` is, in a subclass of one of ours

    def use(self, path: str) -> None:
        """Notes a name."""
        self.used.add(path)

    def member(self, path: str, name: str) -> str:
        """Notes a member of a class."""
        full = self.surface.owner(path, name)
        self.use(full)
        return full

    # ---- what expressions are

    def known(self, node: ast.AST | None) -> Known:
        """What an expression is, as far as it is known; its parts are noted on the way."""
        match node:
            case ast.Name(id=name):
                meant = self.names.get(name)
                if isinstance(meant, Named):
                    self.use(meant.name)
                return meant
            case ast.Attribute(value=value, attr=name):
                return self._attribute(self.known(value), name)
            case ast.Call():
                return self._call(node)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return self._first(parts)
            case ast.IfExp(test=test, body=body, orelse=other):
                return (self.known(test), self._first([body, other]))[1]
            case ast.BoolOp(values=parts):
                return self._first(parts)
            case ast.Subscript(value=value, slice=index):
                self.known(index)
                return self.known(value)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                for generator in node.generators:
                    self.visit(generator)
                return self.known(node.elt)
            case ast.NamedExpr(target=target, value=value):
                self.bind(target, found := self.known(value))
                return found
            case None:
                return None
        self.generic_visit(node)
        return None

    def _first(self, parts: Iterable[ast.AST]) -> Known:
        found = [self.known(part) for part in parts]
        return next((one for one in found if one), None)

    def _attribute(self, base: Known, name: str) -> Known:
        if isinstance(base, Instance):
            return self._of_instance(base.of, name)
        if base is None:
            return None
        if self.surface.cls(base.name):
            return Named(self.member(base.name, name))
        self.use(path := f"{base.name}.{name}")
        return Named(path)

    def _of_instance(self, cls: str, name: str) -> Known:
        full = self.member(cls, name)
        member = inspect.getattr_static(self.surface.cls(cls), name, None)
        if callable(member) or isinstance(member, staticmethod):
            return Named(full)
        return self.surface.result(full) or self.surface.result(f"{cls}.{name}")

    def _call(self, node: ast.Call) -> Known:
        called = self.known(node.func)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        found = [self.known(argument) for argument in arguments]
        if called is None:
            # What a helper of Python's gives back of ours: list(works), copy.copy(comm).
            return next((one for one in found if isinstance(one, Instance)), None)
        if isinstance(called, Instance):
            return None
        cls = self.surface.cls(called.name)
        if cls is not None and (is_dataclass(cls) or called.name.endswith("Options")):
            for keyword in node.keywords:
                if keyword.arg:
                    self.member(called.name, keyword.arg)
        return self.surface.result(called.name)

    # ---- what binds names

    def bind(self, target: ast.AST, value: Known) -> None:
        """Gives a name its meaning."""
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.bind(part, value)
            case ast.Starred(value=inner):
                self.bind(inner, value)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if top == "torchcomms":
                meant = alias.name if alias.asname else top
                self.names[alias.asname or top] = Named(meant)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and node.module.partition(".")[0] == "torchcomms":
            for alias in node.names:
                self.use(node.module)
                self.names[alias.asname or alias.name] = Named(f"{node.module}.{alias.name}")

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.known(target)
        match node.targets, node.value:
            case [ast.Tuple(elts=targets)], ast.Tuple(elts=values) if len(targets) == len(values):
                for target, value in zip(targets, values, strict=True):
                    self.bind(target, self.known(value))
            case _:
                value = self.known(node.value)
                for target in node.targets:
                    self.bind(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.known(node.value)
        self.bind(node.target, self._annotated(node.annotation))

    def _annotated(self, annotation: ast.expr | None) -> Known:
        """What a name is whose annotation, or a part of it, is one of our classes."""
        if annotation is None:
            return None
        kinds = [self.known(part) for part in ast.walk(annotation) if isinstance(part, ast.expr)]
        named = [kind.name for kind in kinds if isinstance(kind, Named)]
        ours = next((name for name in named if self.surface.cls(name)), None)
        return Instance(ours) if ours else None

    def visit_For(self, node: ast.For) -> None:
        match node.target, node.iter:
            # for name, (tensor, work) in zip(names, works): by position
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=parts) if len(
                targets
            ) == len(parts):
                for target, part in zip(targets, parts, strict=True):
                    self.bind(target, self.known(part))
            case _:
                self.bind(node.target, self.known(node.iter))
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.bind(node.target, self.known(node.iter))
        for condition in node.ifs:
            self.known(condition)

    def visit_withitem(self, node: ast.withitem) -> None:
        value = self.known(node.context_expr)
        if node.optional_vars is not None:
            self.bind(node.optional_vars, value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            self.names[argument.arg] = self._annotated(argument.annotation)
        if self._self:
            self.names["self"] = self._self
        for outside in [*node.args.defaults, *node.decorator_list]:
            self.known(outside)
        for statement in node.body:
            self.visit(statement)
        self.names[node.name] = None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [known for base in node.bases if isinstance(known := self.known(base), Named)]
        ours = next((base.name for base in bases if self.surface.cls(base.name)), None)
        for statement in node.body:
            match statement:
                case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) if ours:
                    self.member(ours, name)
        self._self = Instance(ours) if ours else None
        for statement in node.body:
            self.visit(statement)
        self._self = None

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        cls = self.known(node.cls)
        for name, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            value = self._of_instance(cls.name, name) if isinstance(cls, Named) else None
            if isinstance(pattern, ast.MatchAs) and pattern.name:
                self.names[pattern.name] = value
            else:
                self.visit(pattern)

    def generic_visit(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.known(child)
            else:
                self.visit(child)


def used_names(surface: Surface, code: str) -> set[str]:
    """The names that an example uses."""
    reader = Reader(surface)
    reader.visit(ast.parse(code))
    return reader.used


def unused(codes: Iterable[str]) -> list[str]:
    """Public names that none of the examples uses, sorted."""
    surface = Surface()
    used: set[str] = set()
    for code in codes:
        used |= used_names(surface, code)
    return sorted(surface.required - used)
