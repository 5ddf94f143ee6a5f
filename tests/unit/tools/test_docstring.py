"""Descriptions of a tool and its parameters, from docstrings in three styles."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from perdure.tools import as_tool, tool

GOOGLE = """Refund an order.

    The money is back in two days.

    Args:
        order (str): Number of the order,
            as on the invoice.
        amount: In euros.
        ctx: Not for the model.

    Returns:
        A receipt.
    """
NUMPY = """Refund an order.

    The money is back in two days.

    Parameters
    ----------
    order : str
        Number of the order,
        as on the invoice.
    amount : float, optional
        In euros.

    Returns
    -------
    str
        A receipt.
    """
SPHINX = """Refund an order.

    The money is back in two days.

    :param str order: Number of the order,
        as on the invoice.
    :param amount: In euros.
    :returns: A receipt.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstring_styles(doc: str) -> None:
    def refund(order: str, amount: float = 1.0) -> str:
        return ""

    refund.__doc__ = doc
    made = as_tool(refund)
    assert made.description == "Refund an order.\n\nThe money is back in two days."
    properties = made.parameters["properties"]
    assert properties["order"]["description"] == "Number of the order,\nas on the invoice."
    assert properties["amount"]["description"] == "In euros."


@pytest.mark.parametrize(
    ("doc", "description"),
    [
        ("One line.", "One line."),
        ("@ann wrote this: do not call.", "@ann wrote this: do not call."),
        ("Ratio a:b.\n\nNote: only once.", "Ratio a:b.\n\nNote: only once."),
        ("Args:\n    no colon at all\n\nMore.", "Args:\n    no colon at all\n\nMore."),
        (
            "Run it:\n\n    run(\n        1)\n\nThat is all.",
            "Run it:\n\n    run(\n        1)\n\nThat is all.",
        ),
        ("", ""),
        ("Lone \ud800 surrogate.", "Lone � surrogate."),
    ],
)
def test_docstrings_without_parameters(doc: str, description: str) -> None:
    def probe(x: int) -> None: ...

    probe.__doc__ = doc
    assert as_tool(probe).description == description


def test_numpy_names_that_share_a_text() -> None:
    def move(x: int, y: int) -> None:
        """Move.

        Parameters
        ----------
        x, y : int
            In metres.
        """

    properties = as_tool(move).parameters["properties"]
    assert properties["x"]["description"] == properties["y"]["description"] == "In metres."


def test_the_hints_own_description_wins() -> None:
    @tool(description="Given.")
    def probe(x: Annotated[int, Field(description="hint")], y: int = Field(2, description="default")) -> None:
        """Docstring.

        Args:
            x: doc
            y: doc
        """

    assert probe.description == "Given."
    properties = probe.parameters["properties"]
    assert (properties["x"]["description"], properties["y"]["description"]) == ("hint", "default")
