"""The tools of the demo's agent: confined to their folder, and calm about what they find there."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli.demo.worker import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("Apples\nand pears\n")
    (root / "sub" / "b.md").write_text("# Pears\n")
    (root / "image.bin").write_bytes(b"\x89PNG\0pears")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("pears")
    (tmp_path / "secret.txt").write_text("pears")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "loop").symlink_to(root)
    return Folder(root)


def test_files_are_listed_without_hidden_ones_and_links(folder: Folder) -> None:
    assert folder.list_files() == "a.txt (17 bytes)\nimage.bin (10 bytes)\nsub/b.md (8 bytes)"
    assert folder.list_files("sub") == "sub/b.md (8 bytes)"


def test_search_skips_binary_files(folder: Folder) -> None:
    assert folder.search("PEARS") == "a.txt:2: and pears\nsub/b.md:1: # Pears"
    assert folder.search("plums") == "nothing in . contains 'plums'"
    with pytest.raises(ValueError, match="empty"):
        folder.search(" ")


def test_lines_are_read_with_their_numbers(folder: Folder) -> None:
    assert folder.read_file("a.txt", 2) == "2: and pears"
    assert folder.read_file("a.txt", 1, 1) == "1: Apples\n… 1 more lines"
    assert folder.read_file("a.txt", 9) == "a.txt has 2 lines, none from line 9"
    assert folder.read_file("a.txt", -5, 10**9).startswith("1: Apples")


def test_lines_are_counted(folder: Folder) -> None:
    assert folder.count_lines("a.txt") == "a.txt has 2 lines"
    assert folder.count_lines() == "3 lines in 2 text files of .; the longest:\n2 a.txt\n1 sub/b.md"


@pytest.mark.parametrize("path", ["../secret.txt", "sub/../../secret.txt", "link.txt", "/../secret.txt"])
def test_nothing_outside_can_be_read(folder: Folder, path: str) -> None:
    for look in (folder.read_file, folder.count_lines, folder.list_files, lambda p: folder.search("pears", p)):
        with pytest.raises(ValueError, match="outside"):
            look(path)


def test_an_absolute_path_is_one_in_the_folder(folder: Folder) -> None:
    with pytest.raises(FileNotFoundError):
        folder.read_file("/etc/passwd")
    assert folder.read_file("/a.txt", 1, 1).startswith("1: Apples")


@pytest.mark.parametrize(
    ("path", "said"), [("image.bin", "not a text file"), ("sub", "is a folder"), ("no", "there is no")]
)
def test_what_cannot_be_read_is_said(folder: Folder, path: str, said: str) -> None:
    with pytest.raises((ValueError, OSError), match=said):
        folder.read_file(path)


def test_much_is_cut(tmp_path: Path) -> None:
    for number in range(250):
        (tmp_path / f"{number:03}.txt").write_text("pears\n" * 3)
    (tmp_path / "huge.txt").write_bytes(b"pears\n" * 1_000_000)
    (tmp_path / "wide.txt").write_text("w" * 10_000)
    folder = Folder(tmp_path)
    assert folder.list_files().splitlines()[-1] == "… and more: 200 are shown; name a folder below ."
    assert folder.search("pears").splitlines()[-1] == "… the first 40 matches"
    assert len(folder.read_file("wide.txt")) < 400
    with pytest.raises(ValueError, match="more than 5 MB"):
        folder.read_file("huge.txt")
