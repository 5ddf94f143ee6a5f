"""Writes the API reference into the pages of docs/reference, from the signatures and docstrings of the sources.

A page is plain Markdown. Between two comments stands what this program writes; all else is written by hand:

    <!-- api perdure.client.run.Run hide=describe,read_head -->
    …
    <!-- /api -->

Options: `hide=NAME,NAME` leaves out public members, `members=none` all of them, `signature=none` the signature;
`inherit=NAME,NAME` shows methods of a base class too, `base=CLASS` all members of a base class, before its own,
`fields=all` fields without a docstring; `defaults=FUNCTION` names the function that has the defaults of a TypedDict of
options. A section `Args:` becomes a table, with types and defaults from the signature; `**options` in it stands for the
options that a signature unpacks. The heading is one level below the last one above the comment. `<!-- api http -->` is
the operations of the HTTP API, from their OpenAPI document, `<!-- api dialects -->` the table of servers that differ.

Usage: reference.py [--check] [PAGE …]    `--check` writes nothing, and fails if a page is not up to date.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
LINE_LENGTH = 100

_REGION = re.compile(r"^<!-- api (?P<words>.+?) -->\n(?P<body>.*?)^<!-- /api -->$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) ", re.MULTILINE)
_OPTION = re.compile(r"(hide|inherit|base|signature|members|fields|defaults)=([\w,.]+)")
_REQUIRED = re.compile(r"Required\[(.*)\]")
_PRIVATE_NAME = re.compile(r"_\w+")
_ROLE = re.compile(r":(?:func|meth|class|attr|mod|data):`(?:~[\w.]+\.)?(?=\w)")
_TEXT = re.compile(r"'([^'\"\\]*)'")
_LITERAL = re.compile(r"``([^`]+)``")
BAR = r"\|"
"""A bar in a cell of a table."""
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):\n((?: +.+\n?)+)", re.MULTILINE)


class PageError(Exception):
    """A page asks for something that the sources do not have."""


@dataclass(frozen=True)
class Region:
    """What a comment of a page asks for."""

    path: str
    level: int
    """Of the heading."""
    hidden: frozenset[str] = frozenset()
    inherited: tuple[str, ...] = ()
    base: str | None = None
    """The class whose members are shown as those of the object."""
    with_signature: bool = True
    with_members: bool = True
    with_all_fields: bool = False
    defaults: str | None = None
    """The function whose parameters have the defaults of the fields."""

    @classmethod
    def parse(cls, words: str, level: int) -> Region:
        """Parse the words of a comment. Raises ``PageError`` for an unknown option."""
        path, *options = words.split()
        values = dict[str, str]()
        for option in options:
            match = _OPTION.fullmatch(option)
            if match is None:
                raise PageError(f"<!-- api {words} -->: unknown option {option!r}")
            values[match[1]] = match[2]
        hidden = frozenset(values["hide"].split(",")) if "hide" in values else frozenset[str]()
        inherited = tuple(values["inherit"].split(",")) if "inherit" in values else ()
        shown = values.get("signature") != "none", values.get("members") != "none", values.get("fields") == "all"
        return cls(path, level, hidden, inherited, values.get("base"), *shown, values.get("defaults"))


def write_page(text: str) -> str:
    """The page with its regions written anew."""

    def write(match: re.Match[str]) -> str:
        headings = [found for found in _HEADING.finditer(_REGION.sub(_blank, text)) if found.start() < match.start()]
        region = Region.parse(match["words"], len(headings[-1][1]) + 1 if headings else 1)
        return f"<!-- api {match['words']} -->\n\n{describe(region).strip()}\n\n<!-- /api -->"

    return _REGION.sub(write, text)


def _blank(match: re.Match[str]) -> str:
    """A region's text without its headings, of the same length."""
    return " " * len(match[0])


def describe(region: Region) -> str:
    """The Markdown of an object. Raises ``PageError`` if there is no such object, or no such member to hide."""
    if region.path == "http":
        return "\n\n".join(render_operations(region.level))
    if region.path == "dialects":
        return render_dialects()
    subject = find_object(region.path)
    if unknown := sorted(region.hidden - {name for each in list_classes(subject, region) for name in each.members}):
        raise PageError(f"{region.path} has no {', '.join(unknown)} to hide")
    if unknown := sorted(set(region.inherited) - set(getattr(subject, "inherited_members", ()))):
        raise PageError(f"{region.path} does not inherit {', '.join(unknown)}")
    if isinstance(subject, griffe.Module):
        members = [each for each in list_members(subject, region) if isinstance(each, griffe.Class | griffe.Function)]
        return "\n\n".join(
            [render_docstring(subject), *(describe(Region(member.path, region.level)) for member in members)]
        )
    signature = render_signature(subject) if region.with_signature else ""
    parts = [f"{'#' * region.level} {subject.name}", signature, render_docstring(subject)]
    if isinstance(subject, griffe.Class) and region.with_members:
        parts += render_members(subject, region)
    return "\n\n".join(part for part in parts if part)


def find_object(path: str) -> griffe.Object:
    """The object at ``path``. Raises ``PageError``."""
    try:
        subject = load_package()[path]
    except KeyError:
        raise PageError(f"{path} does not exist: it was renamed or removed") from None
    return subject.final_target if isinstance(subject, griffe.Alias) else subject


@cache
def load_package() -> griffe.ModulesCollection:
    """Read the sources; nothing is imported."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], allow_inspection=False)
    loader.load("perdure")
    loader.resolve_aliases(implicit=True, external=False)
    return loader.modules_collection


# ---
# Members of a class.


def list_members(subject: griffe.Class | griffe.Module, region: Region) -> Iterator[griffe.Object]:
    """The public members in the order of the source."""
    for each in list_classes(subject, region):
        for name, member in each.members.items():
            if not (name.startswith("_") or name in region.hidden or isinstance(member, griffe.Alias)):
                yield member


def list_classes(subject: griffe.Object, region: Region) -> list[griffe.Object]:
    """The object, and before it the base class that the region names. Raises ``PageError`` if it is not such a base."""
    if region.base is None:
        return [subject]
    base = find_object(region.base)
    if not isinstance(subject, griffe.Class) or base not in subject.mro():
        raise PageError(f"{region.path} does not inherit from {region.base}")
    return [base, subject]


def render_members(subject: griffe.Class, region: Region) -> Iterator[str]:
    """Its fields as a list, then each method under a heading of its own."""
    members = list(list_members(subject, region))
    fields = [member for member in members if isinstance(member, griffe.Attribute)]
    if region.defaults is not None:
        yield "\n".join(render_options(subject, fields, region.defaults))
        return
    yield "\n".join(render_field(field) for field in fields if field.docstring or region.with_all_fields)
    for method in [*members, *(subject.inherited_members[name].final_target for name in region.inherited)]:
        if isinstance(method, griffe.Function) and method.docstring:
            heading = f"{'#' * (region.level + 1)} {subject.name}.{method.name}"
            yield "\n\n".join((heading, render_signature(method), render_docstring(method)))


def render_options(subject: griffe.Class, fields: list[griffe.Attribute], function: str) -> Iterator[str]:
    """The keys of a TypedDict and of its bases, as parameters of ``function``. Raises ``PageError`` if one has none."""
    inherited = [member.final_target for member in subject.inherited_members.values()]
    source = find_object(function)
    parameters = {each.name: each for each in source.parameters} if isinstance(source, griffe.Function) else {}
    for field in [*fields, *(member for member in inherited if isinstance(member, griffe.Attribute))]:
        if field.name not in parameters:
            raise PageError(f"{function} has no parameter {field.name}, of {subject.path}")
        if field.docstring is None:
            raise PageError(f"{subject.path} does not say what {field.name} means")
        yield render_field(field, parameters[field.name].default)


def render_field(field: griffe.Attribute, default: griffe.Expr | str | None = None) -> str:
    """An item of a list: ``- `name: type = default` ``, and what it means. ``default`` is by default its own."""
    code = f"{field.name}: {render_annotation(field.annotation)}" if field.annotation else field.name
    code = _REQUIRED.sub(r"\1", _TEXT.sub(r'"\1"', code))
    default = find_default(field) if default is None else render_default(default)
    code += f" = {default}" if default and "property" not in field.labels else ""
    text = render_docstring(field)
    return f"- `{code}`" + (f": {textwrap.indent(text, '  ').strip()}" if text else "")


def find_default(field: griffe.Attribute) -> str | None:
    """The default of a dataclass's or pydantic model's field; None if there is none, or it says nothing."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) in ("Field", "field"):
        arguments = {str(each.name): each.value for each in value.arguments if isinstance(each, griffe.ExprKeyword)}
        value = arguments.get("default")
    text = render_default(value) if value is not None else None
    return text if text and len(text) <= LINE_LENGTH // 2 and field.annotation else None


def render_default(value: griffe.Expr | str) -> str:
    """A default value, that of a constant for its name; ``…`` for anything else that has a private name."""
    if isinstance(value, griffe.ExprName):
        with suppress(KeyError, AttributeError, griffe.AliasResolutionError):
            constant = load_package()[value.canonical_path].value
            value = constant if isinstance(constant, str) and len(constant) <= LINE_LENGTH // 2 else value
    text = _TEXT.sub(r'"\1"', str(value))
    return "…" if _PRIVATE_NAME.fullmatch(text) else text


# ---
# Signatures and docstrings.


def render_annotation(annotation: griffe.Expr | str | None) -> str:
    """A type as its reader knows it: ``int`` for an alias of ``Annotated[int, …]``."""
    text = str(annotation)
    for name in annotation.iterate(flat=True) if isinstance(annotation, griffe.Expr) else ():
        if isinstance(name, griffe.ExprName) and (plain := find_plain_type(name)) is not None:
            text = re.sub(rf"\b{name.name}\b", plain, text)
    return text


def find_plain_type(name: griffe.ExprName) -> str | None:
    """What an alias annotates, unless it is a union of messages or events, whose names are needed."""
    try:
        value = load_package()[name.canonical_path].value
    except (KeyError, AttributeError, griffe.AliasResolutionError):
        return None
    if not isinstance(value, griffe.ExprSubscript) or str(value.left) != "Annotated":
        return None
    plain = value.slice.elements[0] if isinstance(value.slice, griffe.ExprTuple) else value.slice
    names = plain.iterate(flat=True) if isinstance(plain, griffe.Expr) else ()
    paths = [each.canonical_path for each in names if isinstance(each, griffe.ExprName)]
    return None if any(path.startswith("perdure.") for path in paths) else str(plain)


def render_signature(subject: griffe.Object) -> str:
    """A block of Python: the signature, of an overloaded function each. ``py``: the tests run blocks of ``python``."""
    lines: list[str] = []
    if isinstance(subject, griffe.Function):
        overloads = subject.overloads or [subject]
        lines = [code for each in overloads for code in render_function(each)]
    elif isinstance(subject, griffe.Class):
        lines = [*render_class(subject)]
    elif isinstance(subject, griffe.Attribute):
        value = f" = {subject.value}" if subject.value is not None and len(str(subject.value)) < 2 * LINE_LENGTH else ""
        lines = [f"{subject.name}{f': {render_annotation(subject.annotation)}' if subject.annotation else ''}{value}"]
    return _TEXT.sub(r'"\1"', "```py\n" + "\n".join(lines) + "\n```") if lines else ""


def render_function(function: griffe.Function) -> Iterator[str]:
    """Its decorators that change how it is called, and its head."""
    for decorator in function.decorators:
        if str(decorator.value) in ("classmethod", "staticmethod", "asynccontextmanager"):
            yield f"@{decorator.value}"
    yield format_call(
        f"{'async ' if 'async' in function.labels else ''}def {function.name}",
        function.parameters,
        f" -> {render_annotation(function.returns)}" if function.returns else "",
    )


def render_class(subject: griffe.Class) -> Iterator[str]:
    """Its bases, if they are worth knowing, or what makes an instance."""
    bases = [str(base) for base in subject.bases]
    if any(base.endswith(("Error", "Exception")) for base in bases):
        yield f"class {subject.name}({', '.join(bases)})"
    elif "Protocol" in bases:
        yield f"class {subject.name}(Protocol)"
    elif (init := find_init(subject)) is not None:
        yield format_call(f"class {subject.name}", init.parameters, "")


def find_init(subject: griffe.Class) -> griffe.Function | None:
    """What makes an instance: that of a base, if its own is written for type checkers alone."""
    init = subject.members.get("__init__")
    if isinstance(init, griffe.Function) and not init.runtime:
        init = next(each.members["__init__"] for each in subject.mro() if "__init__" in each.members)
    return init if isinstance(init, griffe.Function) else None


def format_call(head: str, parameters: griffe.Parameters, returns: str) -> str:
    """``head(parameters) -> returns``, a parameter a line where it is longer than a line."""
    words: list[str] = []
    kinds = griffe.ParameterKind
    public = [each for each in parameters if each.name not in ("self", "cls") and not each.name.startswith("_")]
    for number, each in enumerate(public):
        before = public[number - 1].kind if number else None
        if before is kinds.positional_only and each.kind is not kinds.positional_only:
            words.append("/")
        if each.kind is kinds.keyword_only and before not in (kinds.keyword_only, kinds.var_positional):
            words.append("*")
        words.append(format_parameter(each))
    if public and public[-1].kind is kinds.positional_only:
        words.append("/")
    line = f"{head}({', '.join(words)}){returns}"
    if len(line) <= LINE_LENGTH:
        return line
    return f"{head}(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"


def format_parameter(parameter: griffe.Parameter) -> str:
    """``name: type = default``."""
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    text = (stars.get(parameter.kind, "") if parameter.kind else "") + parameter.name
    text += f": {render_annotation(parameter.annotation)}" if parameter.annotation is not None else ""
    if parameter.default is None or text.startswith("*"):
        return text
    default = render_default(parameter.default)
    return f"{text} = {default}" if parameter.annotation is not None else f"{text}={default}"


def render_docstring(subject: griffe.Object) -> str:
    """The docstring as Markdown: ``code`` in single backquotes, roles without their prefix, arguments as a table, other
    sections as lists. Raises ``PageError``."""
    if subject.docstring is None:
        return ""
    text = re.sub(r"::$", ":", subject.docstring.value, flags=re.MULTILINE)
    function = find_init(subject) if isinstance(subject, griffe.Class) else subject

    def render(section: re.Match[str]) -> str:
        if section[1] == "Args" and isinstance(function, griffe.Function):
            return render_arguments(function, parse_section(section[2]))
        return _list_section(section)

    return _format_code(_SECTION.sub(render, text)).strip()


def _format_code(text: str) -> str:
    return _LITERAL.sub(r"`\1`", _ROLE.sub("`", text))


def parse_section(text: str) -> dict[str, str]:
    """The entries of a section by name; the lines of one are joined."""
    entries = re.split(r"^(?=\S)", textwrap.dedent(text), flags=re.MULTILINE)
    pairs = (entry.partition(":") for entry in entries if entry.strip())
    return {name.strip(): " ".join(meaning.split()) for name, _, meaning in pairs}


def render_arguments(function: griffe.Function, meanings: dict[str, str]) -> str:
    """A table of the parameters. Raises ``PageError`` for one without a meaning, and for a meaning without one.

    The entry ``**options`` stands for the keys of the TypedDicts that overloads unpack: their docstrings count.
    """
    if meanings.pop("**options", None) is not None:
        meanings = find_option_meanings(function) | meanings
    lines = ["| argument | type | default | |", "|---|---|---|---|"]
    for parameter in function.parameters:
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        if parameter.name not in meanings:
            raise PageError(f"the docstring of {function.path} does not say what {parameter.name} means")
        default = "required" if parameter.default is None else f"`{render_default(parameter.default)}`"
        annotation, meaning = render_annotation(parameter.annotation), meanings.pop(parameter.name)
        cells = (f"`{parameter.name}`", f"`{annotation}`", default, meaning)
        lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
    if meanings:
        raise PageError(f"{function.path} has no parameter {', '.join(meanings)}")
    return "\n".join(lines) + "\n"


def find_option_meanings(function: griffe.Function) -> dict[str, str]:
    """The docstrings of the keys that overloads of ``function`` unpack, those of base classes too."""
    meanings = dict[str, str]()
    for each in function.overloads or ():
        for parameter in each.parameters:
            annotation = parameter.annotation
            if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Unpack":
                assert isinstance(annotation.slice, griffe.Expr)
                options = find_object(annotation.slice.canonical_path)
                assert isinstance(options, griffe.Class)
                for name, member in options.all_members.items():
                    docstring = member.final_target.docstring if isinstance(member, griffe.Alias) else member.docstring
                    meanings |= {name: " ".join(docstring.value.split())} if docstring else {}
    return meanings


def _list_section(section: re.Match[str]) -> str:
    items = re.sub(r"^(?=\S)", "- ", textwrap.dedent(section[2]), flags=re.MULTILINE)
    items = re.sub(r"\b\w+Error(?=[^:\n]*:)", r"`\g<0>`", items) if section[1] == "Raises" else items
    return f"{section[1]}:\n\n{re.sub(r'^    +', '  ', items, flags=re.MULTILINE)}"


# ---
# The HTTP API.


def render_operations(level: int) -> Iterator[str]:
    """Each operation under a heading, by tag: what it takes and what it answers; then the schemas that these name."""
    sys.path.insert(0, str(ROOT))
    from perdure.web.app import OPERATIONS
    from perdure.web.openapi import build_document

    document = build_document(OPERATIONS)
    schemas, verbs = document["components"]["schemas"], {each.name: each.verb for each in OPERATIONS}
    operations = [
        (f"{method.upper()} /v1{path}", operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    for tag in document["tags"]:
        yield f"{'#' * level} {tag['name'].capitalize()}"
        for heading, operation in operations:
            if operation["tags"] == [tag["name"]]:
                yield f"{'#' * (level + 1)} {heading}"
                yield from render_operation(operation, verbs[operation["operationId"]])
    yield f"{'#' * level} Schemas"
    yield "What is sent; what is answered is in the document, and among [results](data.md) and [events](events.md)."
    for name, schema in schemas.items():
        if (schema.get("additionalProperties") is False or "oneOf" in schema) and not name.endswith("Query"):
            fields = f"`{render_schema_type(schema)}`"
            if "oneOf" not in schema:
                fields = render_schema_fields(schema.get("properties", {}), schema.get("required", ()))
            yield "\n\n".join([f"{'#' * (level + 1)} {name}", _format_prose(schema.get("description", "")), fields])


def render_operation(operation: dict[str, Any], verb: str) -> Iterator[str]:
    """One operation: text, parameters, body and answer."""
    text = _format_prose(operation.get("description", operation["summary"]))
    yield f"{text} For anyone." if operation.get("security") == [] else f"{text} Needs `{verb}`."
    parameters = [each for each in operation["parameters"] if each["in"] == "query"]
    if parameters:
        required = [each["name"] for each in parameters if each["required"]]
        yield render_schema_fields({each["name"]: each["schema"] | each for each in parameters}, required)
    (status, answer), *_ = operation["responses"].items()
    kinds = [
        f"`{render_schema_type(content['schema'])}`" if "json" in kind and "schema" in content else f"`{kind}`"
        for kind, content in answer.get("content", {}).items()
    ]
    body = [
        f"`{render_schema_type(content['schema'])}`" if "schema" in content else f"the bytes, `{kind}`"
        for kind, content in operation.get("requestBody", {}).get("content", {}).items()
    ]
    yield (f"Body: {body[0]}. " if body else "") + f"Answer: {status}" + (f", {' or '.join(kinds)}." if kinds else ".")


def render_schema_fields(fields: dict[str, Any], required: Sequence[str]) -> str:
    """A list of fields with their types and meanings."""
    lines = []
    for name, schema in fields.items():
        text = _format_prose(schema.get("description", ""))
        default = f" = {json.dumps(schema['default'])}" if schema.get("default") is not None else ""
        optional = "" if name in required or default else "?"
        lines.append(
            f"- `{name}{optional}: {render_schema_type(schema)}{default}`"
            + (f": {' '.join(text.split())}" if text else "")
        )
    return "\n".join(lines)


def render_schema_type(schema: dict[str, Any]) -> str:
    """The type of a JSON Schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "schema" in schema:
        return render_schema_type(schema["schema"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " | ".join(dict.fromkeys(render_schema_type(each) for each in options if each.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"[{render_schema_type(schema.get('items', {}))}]"
    return str(schema.get("type", "JSON"))


def _format_prose(text: str) -> str:
    return _LITERAL.sub(r"`\1`", _ROLE.sub("`", textwrap.dedent(text)))


# ---
# The dialects of providers.


def render_dialects() -> str:
    """The table of `perdure.providers.dialects`: a row for each name, with what differs from the defaults."""
    from perdure.providers.dialects import DIALECTS, describe_differences

    lines = ["| dialect | at | `OpenAIChat` | `Anthropic` |", "|---|---|---|---|"]
    for name in dict.fromkeys(dialect.name for dialect in DIALECTS):
        entries = [dialect for dialect in DIALECTS if dialect.name == name]
        hosts = dict.fromkeys(host for dialect in entries for host in dialect.hosts)
        cells = [", ".join(f"`{host}`" for host in hosts) or ("any other host" if name == "compatible" else "by name")]
        for wire in ("openai", "anthropic"):
            found = next((dialect for dialect in entries if wire in dialect.formats), None)
            changes = {} if found is None else describe_differences(found, wire)
            shown = ", ".join(f"`{field}={value!r}`" for field, value in changes.items())
            cells.append("" if found is None else shown or "the defaults")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    named = [Path(argument) for argument in arguments if argument != "--check"]
    wrong = 0
    for page in named or sorted(PAGES.glob("*.md")):
        text = page.read_text()
        try:
            written = write_page(text)
        except PageError as error:
            print(f"{page}: error: {error}")
            wrong += 1
            continue
        if written != text and check:
            print(f"{page}: error: is not what the sources say: run `make fmt`")
            wrong += 1
        elif written != text:
            page.write_text(written)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
