"""The library's prices in the page: pure modules as one script, which sliders ask.

PScript compiles a subset of Python. What it would get wrong without a word, `faults` names: the
script has Python's results, or there is none. Left to care: the length of a dict, a key that is
missing, and a whole float as text.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import getsource

import pscript

MODULES = (  # each imports from those before it
    "minidist.schedule.buckets",
    "minidist.schedule.lanes",
    "minidist.schedule.steps",
    "minidist.formulas.inputs",
    "minidist.formulas.nccl",
    "minidist.formulas.models",
    "minidist.formulas.links",
    "minidist.formulas.compute",
    "minidist.formulas.inside",
    "minidist.formulas.memory",
    "minidist.formulas.update",
    "minidist.formulas.step",
    "minidist.formulas.refusals",
    "minidist.formulas.grids",
    "minidist.formulas.reasons",
    "course.timing.backward",
    "course.interactive.in_page",
)
ONCE = {  # functions of an object that stays as it is: asked again, they answer from memory
    "minidist.formulas.models": ("tensors", "scale", "ready", "fullest"),
    "minidist.formulas.memory": ("buckets", "bucket_bytes"),
    "minidist.formulas.links": ("collective",),
    "course.interactive.in_page": ("whole",),
}
SCRIPT = """\
globalThis.minidistModules ??= (function library() {{
"use strict";
const math = Object.create(Math);
math.inf = Infinity;
const f_op_contains = (one, all) =>
  Array.isArray(all) ? all.includes(one) : Object.hasOwn(all, one);
const f_sum = (all) => all.reduce((one, other) => one + other, 0);
const f_round = (x) => Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x);
const once = (ask) => {{
  const known = new WeakMap();
  return (of, ...more) => {{
    if (!known.has(of)) known.set(of, new Map());
    const [answers, key] = [known.get(of), more.join()];
    if (!answers.has(key)) answers.set(key, ask(of, ...more));
    return answers.get(key);
  }};
}};
const listed = (all) => typeof all === "object" && !Array.isArray(all) ? Object.keys(all) : all;
{library}
const modules = {{ source: () => `(${{library}})()` }};
{modules}
return modules;
}})();
"""
MODULE = 'modules["{name}"] = (() => {{\n{imports}{code}\n{once}return {{{names}}};\n}})();'
SHORTER = (  # what PScript writes everywhere, and what does the same faster
    (
        r'if \(\(typeof (\w+) === "object"\) && \(!Array\.isArray\(\1\)\)\) '
        r"\{ ?\1 = Object\.keys\(\1\);\}",
        r"\1 = listed(\1);",
    ),
    (r"_pyfunc_op_instantiate\(this, arguments\);", "this.__init__(...arguments);"),
    (r"\(function list_comprehension ", "(function "),
    (r"_pyfunc_", "f_"),
    (r"_pymeth_", "m_"),
    (r" = function flx_\w+ ", " = function "),
    (r"\s//.*|^\s+|^\w+\.prototype\.(_base_class|__name__) = .*", ""),  # and comments, indents
)


@cache
def script() -> str:
    """The script: `minidistModules["minidist.formulas.step"].forecast(...)`.

    `minidistModules.source()` is an expression that makes the same modules in a worker.
    """
    return joined({name: getsource(import_module(name)) for name in MODULES})


def joined(sources: Mapping[str, str]) -> str:
    """A script of modules, by their names, and of what PScript's code calls."""
    parts, functions, methods = [], set[str](), set[str]()
    for name, source in sources.items():
        code, used = compiled(name, source)
        parts.append(code)
        functions |= used.meta["std_functions"]
        methods |= used.meta["std_methods"]
    for part, names in ((pscript.stdlib.FUNCTIONS, functions), (pscript.stdlib.METHODS, methods)):
        for each in sorted(names):
            _, more, others = pscript.stdlib.get_std_info(part[each])
            functions, methods = functions | {*more}, methods | {*others}
    library = pscript.stdlib.get_partial_std_lib(
        functions - {"sum", "round", "op_contains"}, methods
    )
    return small(SCRIPT.format(library=library, modules="\n".join(parts)))


def compiled(name: str, source: str) -> tuple[str, pscript.JSString]:
    """A module as a function that is called once, and what PScript says of it.

    Raises SyntaxError that names the module, its line and what PScript would get wrong there.
    """
    tree = ast.parse(source)
    imports = dict(_imports(tree))
    bare = Bare().visit(tree)
    for line, fault in faults(bare):
        raise SyntaxError(f"{name}, line {line}: a page cannot run {fault}")
    code = pscript.py2js(ast.unparse(bare), inline_stdlib=False)
    for unknown in sorted(code.meta["vars_unknown"]):
        if unknown.split(".")[0] not in {*imports, "math"}:
            raise SyntaxError(f"{name}: a page does not know the name {unknown}")
    brought = "".join(f"const {own} = {of};\n" for own, of in imports.items())
    own = [each for each in sorted(code.meta["vars_defined"]) if not each.startswith("stub")]
    once = "".join(f"{each} = once({each});\n" for each in ONCE.get(name, ()))
    names = ", ".join(own)
    return MODULE.format(name=name, imports=brought, code=code, once=once, names=names), code


def small(script: str) -> str:
    """Without indents, comments, empty lines, and what PScript repeats."""
    for long, short in SHORTER:
        script = re.sub(long, short, script, flags=re.M)
    return "\n".join(line.rstrip() for line in script.splitlines() if line.strip()) + "\n"


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that come from other modules of the page, and where they are found there."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for each in node.names:
                own, whole = each.asname or each.name, f"{node.module}.{each.name}"
                place = f'modules["{node.module}"].{each.name}'
                if {whole, node.module} & {*MODULES}:
                    yield own, f'modules["{whole}"]' if whole in MODULES else place


class Bare(ast.NodeTransformer):
    """Leaves out what a page has no use for: imports, types, docstrings.

    Of a record, such as a NamedTuple or a dataclass, its fields make an `__init__`; and a range is
    counted once, before its loop.
    """

    def visit_Import(self, node: ast.stmt) -> None:
        """Nothing, as for an import from a module."""

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        if ast.unparse(node.iter).startswith("range("):
            node.iter = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for each in node.args.args:
            each.annotation = None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        if fields:
            names = [ast.unparse(each.target) for each in fields]
            values = (f" = {ast.unparse(each.value)}" if each.value else "" for each in fields)
            given = ", ".join(name + value for name, value in zip(names, values, strict=True))
            body = "; ".join(f"self.{name} = {name}" for name in names)
            (made,) = ast.parse(f"class {node.name}:\n def __init__(self, {given}): {body}").body
            return ast.copy_location(made, node)
        return self.generic_visit(node)


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines, and what PScript compiles to something else there, or Python has and it has not."""
    for node in ast.walk(tree):
        if fault := _fault(node):
            place = node.target if isinstance(node, ast.comprehension) else node
            yield getattr(place, "lineno", 0), fault
        if isinstance(node, ast.FunctionDef):
            yield from _misread_names(node)


def _fault(node: ast.AST) -> str:
    match node:
        case ast.Call(keywords=[_, *_]):
            return "a keyword argument"
        case ast.Call(func=ast.Name(id="sorted" | "divmod" | "isinstance" | "set" as name)):
            return f"{name}()"
        case ast.Call(func=ast.Attribute(attr="sort")):
            return "sort(), which compares texts"
        case ast.Tuple(elts=all_, ctx=ast.Store()):
            nested = any(isinstance(each, ast.Tuple) for each in all_)
            return "a nested target" if nested else ""
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.LShift() | ast.RShift()):
            return "an operation on bits"
        case ast.BinOp(op=ast.Mod()):
            return "a remainder or a format"
        case ast.Subscript(slice=ast.BinOp(op=ast.Sub(), left=left)):
            counted = ast.unparse(left).startswith("len(")
            return "" if counted else "an index that may be negative"
        case ast.Dict(keys=keys):
            texts = (isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys)
            return "" if all(texts) else "a key that is no text"
        case ast.FormattedValue(format_spec=ast.expr()):
            return "a format"
        case ast.arguments(defaults=values) if any(
            isinstance(value, ast.List | ast.Dict) for value in values
        ):
            return "a default that can change"
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE(), *_], left=left) if (
            isinstance(left, ast.List | ast.Tuple)
        ):
            return "an order of lists"
        case ast.BoolOp(op=ast.And(), values=[*tests, _]) | ast.comprehension(ifs=tests):
            return "" if all(map(_is_bool, tests)) else "a test of what may be empty"
        case ast.While(test=test) if not _is_bool(test):
            return "a test of what may be empty"
        case ast.Delete() | ast.Global() | ast.Nonlocal():
            return f"{type(node).__name__.lower()}"
    return ""


def _misread_names(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Arguments that change in place, and names that a comprehension would change around it."""
    nodes, arguments = [*ast.walk(function)], {each.arg for each in function.args.args}
    comprehensions = [each for each in nodes if isinstance(each, ast.ListComp)]
    inside = {node for each in comprehensions for node in ast.walk(each)}
    outside = arguments | {*_stored(node for node in nodes if node not in inside)}
    for each in comprehensions:
        own = _stored(ast.walk(each))
        if len({*own}) < len(own) or outside & {*own} - {"_"}:
            yield each.lineno, "a comprehension's name that also stands for something else"
    for node in nodes:
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) in arguments:
            yield node.lineno, "an assignment in place to an argument"


def _stored(nodes: Iterable[ast.AST]) -> list[str]:
    names = (node for node in nodes if isinstance(node, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def _is_bool(test: ast.expr) -> bool:
    match test:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant():
            return True
        case ast.BoolOp(values=values):
            return all(map(_is_bool, values))
    return False
