"""The texts for OutcomeUnknown have one home."""

import ast
from pathlib import Path

import perdure
from perdure.types import outcome_unknown

HOME = Path(outcome_unknown.__file__)


def list_texts(path: Path) -> list[str]:
    """The strings of a module, the literal parts of f-strings too, without its docstrings."""
    source = path.read_text(encoding="utf-8")
    if not any(words in source.lower() for words in ("outcomeunknown", "may have", "happened or not")):
        return []  # quicker than to parse it
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in statements)
    return [node.value for node in constants if isinstance(node.value, str)]


def is_about_unknown_outcome(text: str) -> bool:
    return text.startswith("OutcomeUnknown") or "may have happened or not" in text.lower()


def test_no_other_module_has_a_text_of_its_own() -> None:
    modules = sorted(Path(perdure.__file__).parent.rglob("*.py"))
    assert {path for path in modules if any(map(is_about_unknown_outcome, list_texts(path)))} == {HOME}


def test_each_result_begins_with_the_type_of_its_error_and_says_that_the_call_may_have_happened() -> None:
    texts = [
        outcome_unknown.RUN_ENDED,
        outcome_unknown.FORKED,
        outcome_unknown.format_lost_worker("pay"),
        outcome_unknown.format_lost_workers("pay", 3),
    ]
    assert all(text.startswith("OutcomeUnknown: ") and "It may have happened or not." in text for text in texts)
    assert len(set(texts)) == len(texts)
