"""Whatever the documentation shows runs as it stands, and what it lists is what there is."""

import inspect
import re
import shlex
from pathlib import Path

import pytest

from faults.run import CAMPAIGNS
from metta import PPOTrainer
from metta.cli.main import main
from metta.loggers import read_events
from metta.rl.hooks.base import EVENTS
from metta.store.checkpoints.files import MANIFEST_FILE, POLICY_FILE, TENSOR_FILE, TREE_FILE
from metta.store.run_directory import RunDirectory
from metta.train.parsing.schema import setting_values
from metta.train.recipes import RECIPES
from metta.train.settings import setting_paths
from metta.train.train_config import TrainingConfig
from tests.pages import ROOT, all_pages, blocks_of, pages_with_code, run_blocks, text_of


def rows_of(page: str) -> list[list[str]]:
    """Cells of every table of a page."""
    lines = [line for line in text_of(page).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def words_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# the pages of runs and of configuration have tests of their own, and so have tutorials
RUN_ELSEWHERE = ("docs/runs.md", "docs/configuration.md", "docs/tutorials/")


@pytest.mark.parametrize(
    "page", [page for page in pages_with_code() if not page.startswith(RUN_ELSEWHERE)]
)
def test_code_blocks_run_when_taken_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_blocks(page, tmp_path, monkeypatch)


def test_links_lead_somewhere_when_followed_from_each_page() -> None:
    for page in [ROOT / name for name in all_pages()]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_lead_to_headings_when_they_name_one() -> None:
    for page in [ROOT / name for name in all_pages()]:
        for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text()):
            place = page.parent / target if target else page
            headings = re.findall(r"^#+ (.+)$", place.read_text(), re.MULTILINE)
            slugs = [
                re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in headings
            ]
            assert anchor in slugs, f"{page.name} links to {target}#{anchor}"


def test_the_run_is_as_the_page_says_when_its_blocks_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_blocks("docs/runs.md", tmp_path, monkeypatch)
    listed = {word for row in rows_of("docs/runs.md") for word in words_in(row[0])}
    run = tmp_path / "runs" / "first"
    found = {path.name + ("/" if path.is_dir() else "") for path in run.iterdir()}
    assert {name for name in found if name != "checkpoints/"} <= listed
    assert {event.kind for event in read_events(run / "events.jsonl")} <= listed
    (newest,) = [path for path in (run / "checkpoints").iterdir() if path.name == "epoch_000008"]
    assert {path.name for path in newest.iterdir()} <= listed
    assert "is in use by another trainer" in capsys.readouterr().out


def test_the_page_of_runs_names_every_place_when_the_layout_grows() -> None:
    page, run = text_of("docs/runs.md"), RunDirectory("somewhere")
    places = inspect.getmembers(RunDirectory, lambda member: isinstance(member, property))
    names = [getattr(run, name).name for name, _ in places if name.endswith(("_dir", "_file"))]
    for name in [*names, MANIFEST_FILE, POLICY_FILE, TENSOR_FILE, TREE_FILE]:
        assert re.search(rf"`{re.escape(name)}\b", page), f"{name} is missing"


def test_the_page_of_hooks_has_every_event_and_value_when_one_is_added() -> None:
    rows = {words_in(row[0])[0]: row for row in rows_of("docs/hooks.md") if words_in(row[0])}
    always = set.intersection(*(set(offers) for offers in EVENTS.values()))
    assert always <= {
        word for line in text_of("docs/hooks.md").splitlines() for word in words_in(line)
    }
    for event, offers in EVENTS.items():
        assert set(words_in(rows[event][2])) == set(offers) - always


def test_the_page_of_reliability_has_every_component_and_campaign_when_one_is_added() -> None:
    listed = {words_in(row[0])[0] for row in rows_of("docs/reliability.md") if words_in(row[0])}
    with PPOTrainer(None, "CartPole-v1") as trainer:
        assert set(trainer.registry.names()) <= listed
    assert set(CAMPAIGNS) <= listed


def test_defaults_are_those_of_the_settings_when_the_page_of_configuration_names_them() -> None:
    values, paths = setting_values(TrainingConfig()), setting_paths()
    table = [row for row in rows_of("docs/configuration.md") if len(row) == 3]
    rows = table[table.index(["setting", "default", ""]) + 2 :]
    assert len(rows) > 5
    for names, defaults, _ in rows:
        shown = defaults.replace("`", "").split(", ")
        assert [f"{values[paths[name]]:}".removesuffix(".0") for name in words_in(names)] == shown


def test_the_error_looks_as_shown_when_the_page_of_configuration_provokes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_blocks("docs/configuration.md", tmp_path, monkeypatch)
    (shown,) = [
        block for block in blocks_of("docs/configuration.md", "text") if "problems:" in block
    ]
    assert shown in capsys.readouterr().out


def test_other_spellings_lead_where_the_page_says_when_a_setting_has_them() -> None:
    paths = setting_paths()
    table = [row for row in rows_of("docs/configuration.md") if len(row) == 2]
    begin = table.index(["here", "elsewhere"]) + 2
    rows = [row for row in table[begin:] if words_in(row[0])]
    assert rows
    for here, elsewhere in rows:
        (name,) = words_in(here)
        assert {paths[other] for other in words_in(elsewhere)} == {paths[name]}


def test_every_recipe_is_listed_with_its_settings_when_the_page_of_recipes_shows_them() -> None:
    rows = {row[0]: row[2] for row in rows_of("docs/recipes.md") if len(row) == 3}
    for name, recipe in RECIPES.items():
        own = [choice.path.rpartition(".")[2] for choice in recipe.choices]
        assert sorted(words_in(rows[name])) == sorted(own)


def commands() -> list[str]:
    lines = "\n".join(blocks_of("docs/configuration.md", "text")).splitlines()
    return [re.split(r"\s{3,}", line)[0] for line in lines if line.startswith("metta ")]


@pytest.mark.parametrize("command", commands())
def test_a_command_runs_when_the_page_of_configuration_shows_it(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("ppo: {clip_coef: 0.1}\n")
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def test_the_bound_on_functions_is_the_enforced_one_when_the_comparison_names_it() -> None:
    (named,) = re.findall(
        r"no function of the library above (\d+) lines", text_of("docs/comparison.md")
    )
    rules = (ROOT / "tests" / "architecture" / "test_architecture.py").read_text()
    assert f"MAX_FUNCTION_LINES = {named}\n" in rules
