"""Catalogue of agents: every file is valid, and a plan can name each agent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor.agent_catalogue import BadData, Quirks, UnknownAgent, catalogue, known_agent, read_data
from supervisor.agent_catalogue.catalogue import HERE, KnownAgent
from supervisor.agent_catalogue.line_rules import LineMapping
from supervisor.host.factories import profile_of
from supervisor.plans import AgentConfig, BadPlan, Plan, load_plan

TASKS = "tasks: [{id: t, agent: w, prompt: hi}]\n"
MAPPING = 'rules = [{when = {type = "result"}, says = "end", stop = "end_turn"}]\n'


def plan_of(folder: Path, agent: str, **instead: str) -> Plan:
    path = folder / "plan.yaml"
    path.write_text(f"agents: {{w: {agent}}}\n{TASKS}")
    return load_plan(path, instead=instead)


def refusal(folder: Path, agent: str, **instead: str) -> str:
    with pytest.raises(BadPlan) as refused:
        plan_of(folder, agent, **instead)
    return str(refused.value).replace(f"{folder}/", "")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set PATH to a directory in which every known agent is a program that does nothing."""
    place = tmp_path / "bin"
    place.mkdir()
    for one in catalogue().values():
        for variant in one.ways:
            program = place / variant.command[0]
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return place


# ------------------------------------------------------------------------------------------------------ the files
@pytest.mark.parametrize("path", sorted((HERE / "known").glob("*.toml")), ids=lambda path: path.stem)
def test_each_agent_has_a_file_of_its_name(path: Path) -> None:
    """Every file of the catalogue is valid and has the name of its agent, and no two agents share a name or alias."""
    one = read_data(path, KnownAgent)
    assert one.name == path.stem
    others = [name for other in catalogue().values() if other.name != one.name for name in (other.name, *other.also)]
    assert not {one.name, *one.also} & set(others)


@pytest.mark.parametrize("path", sorted((HERE / "mappings").glob("*.toml")), ids=lambda path: path.stem)
def test_each_mapping_is_that_of_an_agent(path: Path) -> None:
    """Every mapping file of the catalogue is valid and belongs to the agent of that name."""
    assert known_agent(path.stem).variant("jsonl").mapping == read_data(path, LineMapping)


@pytest.mark.parametrize("name", catalogue())
def test_an_agent_names_no_place_that_packages_come_from(name: str) -> None:
    """The installation in a catalogue file names package and version, and no registry."""
    install = known_agent(name).install
    assert install is not None
    assert "://" not in install.command
    assert install.version in install.command


@pytest.mark.parametrize("name", catalogue())
def test_only_the_jsonl_adapter_has_a_mapping(name: str) -> None:
    """A variant of an agent has a mapping exactly if its adapter is jsonl, and no two variants share an adapter."""
    ways = known_agent(name).ways
    assert [variant.mapping is not None for variant in ways] == [variant.adapter == "jsonl" for variant in ways]
    assert len({variant.adapter for variant in ways}) == len(ways)


def test_an_agent_is_found_by_another_name_of_its() -> None:
    """An agent is found by its alias."""
    assert known_agent("claude-code") is known_agent("claude")


def test_an_unknown_agent_is_told_with_the_nearest() -> None:
    """An unknown name of an agent is an error that suggests the nearest known name."""
    with pytest.raises(UnknownAgent, match=r"'gemni' is not in the catalogue of agents; did you mean 'gemini'\?"):
        known_agent("gemni")


# ------------------------------------------------------------------------------------------------------ in a plan
def test_a_plan_names_an_agent_of_the_catalogue(tmp_path: Path, programs: Path) -> None:
    """Adapter, command, environment and quirks of a known agent come from the catalogue."""
    agent = plan_of(tmp_path, "{known: gemini}").agents["w"]
    assert (agent.adapter, agent.command) == ("acp", known_agent("gemini").ways[0].command)
    assert agent.env == known_agent("gemini").env
    assert agent.inherit_env == known_agent("gemini").passes
    assert agent.quirks == Quirks(needs_kill=True, exit_status_lies=True)


def test_what_a_plan_says_of_a_known_agent_goes_first(tmp_path: Path, programs: Path) -> None:
    """A plan may choose another adapter, more arguments and variables, and other quirks."""
    words = "{known: qwen, adapter: jsonl, arguments: [--model, m], env: {A: b}, inherit_env: [C], quirks: {}}"
    agent = plan_of(tmp_path, words).agents["w"]
    assert agent.adapter == "jsonl"
    assert agent.env == {**known_agent("qwen").env, "A": "b"}
    assert agent.inherit_env == (*known_agent("qwen").passes, "C")
    assert agent.quirks == Quirks()
    profile = profile_of("w", agent, tmp_path)
    assert profile.command == (*known_agent("qwen").variant("jsonl").command, "--model", "m")
    assert profile.mapping == known_agent("qwen").variant("jsonl").mapping


def test_another_agent_takes_the_part_of_one_in_a_plan(tmp_path: Path, programs: Path) -> None:
    """`--agent w=gemini:jsonl` replaces the program, and keeps the other keys of the plan's agent."""
    agent = plan_of(tmp_path, "{adapter: command, command: [git], network: true}", w="gemini:jsonl").agents["w"]
    assert (agent.known, agent.adapter, agent.network) == ("gemini", "jsonl", True)
    assert agent.command == known_agent("gemini").variant("jsonl").command


def test_permissions_stay_when_another_agent_takes_the_part(tmp_path: Path, programs: Path) -> None:
    """The plan's permissions hold for the replacement, but its ``unguarded`` does not."""
    entry = "{adapter: command, command: [git], permissions: deny, unguarded: true}"
    assert plan_of(tmp_path, entry, w="gemini").agents["w"].permissions.default == "deny"
    with pytest.raises(BadPlan, match=r"agents\.w\.permissions: 'deny' cannot work: adapter: jsonl"):
        plan_of(tmp_path, entry, w="gemini:jsonl")


def test_an_embedding_program_names_an_agent_of_the_catalogue(tmp_path: Path) -> None:
    """An AgentConfig built in Python uses the catalogue as a plan file does."""
    agent = AgentConfig(known="opencode")
    assert profile_of("w", agent, tmp_path).command == ("opencode", "acp")


@pytest.mark.parametrize(
    ("agent", "instead", "words"),
    [
        ("{known: gemni}", {}, "agents.w.known: 'gemni' is not in the catalogue of agents; did you mean 'gemini'?"),
        (
            "{known: pi, adapter: acp}",
            {},
            "agents.w.adapter: pi has no variant with the adapter 'acp'; use one of: jsonl",
        ),
        ("{known: 7}", {}, "agents.w.known: 7 is read as a number; quote it to make it text: '7'"),
        (
            "{known: pi, quirks: {neds_kill: true}}",
            {},
            "agents.w.quirks.neds_kill: unknown key; did you mean 'needs_kill'?",
        ),
        ("{command: [git]}", {}, "agents.w.adapter: missing; give one of command, acp, "),
        ("{adapter: jsonl, command: [git]}", {}, "agents.w.mapping: missing; give the path of a mapping"),
        ("{adapter: jsonl, command: [git], mapping: no.toml}", {}, "agents.w.mapping: no.toml: cannot be read"),
        ("{adapter: acp, command: [git], mapping: no.toml}", {}, "agents.w.mapping: adapter 'acp' has none"),
        ("{adapter: scripted, arguments: [a]}", {}, "agents.w.arguments: the scripted agent takes none"),
        ("{adapter: scripted}", {"w": "clawde"}, "agents.w.known: 'clawde' is not in the catalogue"),
        (
            "{adapter: scripted}",
            {"x": "pi"},
            "'pi' cannot replace 'x', which is not an agent of this plan; the agents",
        ),
        (
            "{adapter: command, command: [git], quirks: {exit_status_lies: true}}",
            {},
            "agents.w.adapter: 'command' relies on the exit status, which this agent does not set",
        ),
    ],
)
def test_a_plan_that_is_wrong_about_agents_is_refused(
    tmp_path: Path, programs: Path, agent: str, instead: dict[str, str], words: str
) -> None:
    """An invalid agent is an error with the field, the value and the fix."""
    assert words in refusal(tmp_path, agent, **instead)


def test_an_agent_that_is_not_installed_is_told_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing program is an error with the command that installs the tried version."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.search(
        r"no program 'pi' on PATH; install it \(`npm install .+@1\.6\.0`\)", refusal(tmp_path, "{known: pi}")
    )


# ------------------------------------------------------------------------------------------------------ a mapping
def test_a_plan_has_a_mapping_of_its_own(tmp_path: Path) -> None:
    """A mapping file is found relative to the plan, and reaches the adapter."""
    (tmp_path / "mine.toml").write_text(MAPPING)
    agent = plan_of(tmp_path, "{adapter: jsonl, command: [git], mapping: mine.toml}").agents["w"]
    assert profile_of("w", agent, tmp_path).mapping == read_data(tmp_path / "mine.toml", LineMapping)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules = [", "is not TOML: "),
        ("rules = 3", "rules: 3: input should be a valid tuple"),
        ("rules = [{}]", "rules[0]: says: missing; name the fact that the rule reports"),
        ('rules = [{says = "speak"}]', "rules[0]: says: 'speak' is not one of session, text"),
        ('rules = [{says = "text", when = {a = 1}}]', "rules[0].text: missing"),
        ('rules = [{says = "text", when = {}, text = "a"}]', "rules[0].when: "),
        ('rules = [{says = "text", when = {"a..b" = 1}, text = "a"}]', "'a..b' is not a path"),
        (
            'rules = [{says = "text", when = {a = {b = 1}}, text = "a"}]',
            "rules[0].when.a: {'b': 1} is not a value to match",
        ),
        (
            'rules = [{says = "text", when = {a = 1}, where = {b = 1}, text = "a"}]',
            "where: needs each, the path of the list",
        ),
        (f'prompt = "stdout"\n{MAPPING}', "prompt: 'stdout': input should be 'argument' or 'stdin'"),
        (f'prompt_arguments = ["-p"]\n{MAPPING}', "prompt_arguments: none contains {prompt}"),
        (f'prompt = "stdin"\nprompt_arguments = "{{prompt}}"\n{MAPPING}', 'but prompt = "stdin"'),
        (f'resume_arguments = ["-r"]\n{MAPPING}', "resume_arguments: none contains {id}"),
        (f'new_arguments = "{{id}}"\n{MAPPING}', "new_arguments: need resume_arguments, too"),
        ('rules = [{when = {a = 1}, says = "end", stop = "error"}]', "without it no turn can succeed"),
        (f"extra = 1\n{MAPPING}", "extra: unknown key"),
        (f'prompt_arguments = "{{prompt}}\\u0000"\n{MAPPING}', "contains a NUL character"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """An invalid mapping is an error with the file, the field and the fix."""
    path = tmp_path / "m.toml"
    path.write_text(text)
    with pytest.raises(BadData) as refused:
        read_data(path, LineMapping)
    assert str(refused.value).startswith(f"{path}: ")
    assert words in str(refused.value)
