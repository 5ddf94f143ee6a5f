"""Parameters of commands that are groups of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from perdure.cli.options import Commands


@dataclass(frozen=True)
class Place:
    host: Annotated[str, typer.Option(help="Where.")] = "here"
    port: Annotated[int, typer.Option("--port", "-p")] = 1

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def go(name: Annotated[str, typer.Argument()], loud: bool = False, *, place: Place) -> None:
    print(name, loud, place)


def stay() -> None:
    print("stayed")


app = Commands()
app.add(go, name="leave")
app.add(stay)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["leave", "ana"], "ana False here:1\n"),
        (["leave", "ana", "--loud", "--host", "there", "-p", "7"], "ana True there:7\n"),
        (["stay"], "stayed\n"),
    ],
)
def test_what_options_make_is_given_to_the_command(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.output) == (0, said)


def test_they_are_options_like_others() -> None:
    said = CliRunner().invoke(app, ["leave", "--help"]).output
    assert all(text in said for text in ("--host", "Where.", "--port"))
    assert CliRunner().invoke(app, ["leave", "ana", "--port", "x"]).exit_code == 2


def test_the_function_itself_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    go("ana", place=Place("there"))
    assert capsys.readouterr().out == "ana False there:1\n"
