"""What a release consists of agrees: versions, dependencies, workflows, the image."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from forescale.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def loaded(name: str):
    return yaml.safe_load((ROOT / name).read_text())


def test_the_version_is_the_same_everywhere():
    assert loaded("CITATION.cff")["version"] == __version__
    assert loaded("packaging/recipe.yaml")["context"]["version"] == __version__


def test_the_recipe_has_the_dependencies_of_the_package():
    def plain(names) -> set[str]:
        return {re.sub(r"\s+", "", name).lower() for name in names}

    recipe = loaded("packaging/recipe.yaml")
    run = plain(recipe["requirements"]["run"])
    assert run == plain(PROJECT["dependencies"]) | {f"python{PROJECT['requires-python']}"}
    name, target = next(iter(PROJECT["scripts"].items()))
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {target}"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name
)
def test_workflows_have_jobs_of_known_steps_and_few_rights(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]  # `on` is read as true
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        assert all("@" in step["uses"] for step in job["steps"] if "uses" in step)


def test_the_workflow_runs_what_continuous_integration_runs():
    steps = loaded(".github/workflows/ci.yml")["jobs"]["all"]["steps"]
    assert "./.ci/run" in [step.get("run") for step in steps]
    matrix = loaded(".github/workflows/ci.yml")["jobs"]["wheel"]["strategy"]["matrix"]["python"]
    assert matrix == [
        name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)
    ]


@pytest.mark.parametrize("name", ["wrong_number", "bug"])
def test_forms_ask_for_the_question_and_the_version(name):
    form = loaded(f".github/ISSUE_TEMPLATE/{name}.yml")
    fields = {field["id"]: field for field in form["body"]}
    assert {"question", "version"} <= fields.keys()
    assert all(field["validations"]["required"] for field in fields.values())


def test_the_image_serves_the_page_as_a_user_without_rights():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    words = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    assert json.loads(words["ENTRYPOINT"]) + json.loads(words["CMD"]) == [
        "forescale",
        "serve",
        "--host",
        "0.0.0.0",
    ]
    assert words["USER"] == "forescale"
    assert "slim" in words["FROM"]
