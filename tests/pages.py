"""Pages of the documentation, and their code as programs."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def all_pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def pages_with_code() -> list[str]:
    return [page for page in all_pages() if "```python" in text_of(page)]


def blocks_of(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def files_of(page: str) -> dict[str, str]:
    """Blocks that a page asks its reader to save, by name."""
    pattern = r'^```python title="([^"]+)"\n(.*?)^```'
    return dict(re.findall(pattern, text_of(page), re.DOTALL | re.MULTILINE))


def run_blocks(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the files of a page and run its other Python, in order, in an empty folder."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name, text in files_of(page).items():
        (folder / name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    script = folder / "blocks.py"
    script.write_text("\n".join(map(_shortened, blocks_of(page))))
    runpy.run_path(str(script), run_name="__main__")


def _shortened(block: str) -> str:
    """A block that trains for one rollout, unless it asserts what takes longer to learn."""
    if re.search(r"^assert ", block, re.MULTILINE):
        return block
    pattern = r"(\.train\(total_timesteps=)([\d_]+)"
    return re.sub(pattern, lambda found: f"{found[1]}{min(int(found[2]), 2048)}", block)
