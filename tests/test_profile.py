"""Profiles: the built-in ones keep their promises, and every fault is one line with file, line and key."""

from __future__ import annotations

import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.errors import UsageError
from trtbuild.profile import Profile, list_profiles, load_profile, profile_type, to_dict
from trtbuild.quantize.precisions import PRECISIONS
from trtbuild.targets.base import Limits

ROOT = Path(__file__).parents[1]
MINIMAL = "name: mine\ndescription: Something.\n"


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(folder: Path, text: str | bytes) -> UsageError:
    path = write(folder, text)
    with pytest.raises(UsageError) as caught:
        load_profile(path)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(str(path))
    assert "\n" not in f"{caught.value}{caught.value.hint}"
    return caught.value


# --- the built-in profiles


def test_the_built_in_profiles_are_those_of_the_repository() -> None:
    assert list_profiles() == ["chat", "ci", "finance", "long-document", "realtime-voice"]
    assert list_profiles() == sorted(path.stem for path in (ROOT / "profiles").glob("*.yaml"))


@pytest.mark.parametrize("name", list_profiles())
def test_a_built_in_profile_fits_the_rest_of_trtbuild(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert set(profile.precisions) <= set(PRECISIONS)
    assert dataclasses.asdict(Limits(**dataclasses.asdict(profile.limits))) == dataclasses.asdict(profile.limits)
    for level in profile.workload.concurrency:
        assert level <= profile.limits.max_batch_size


def test_the_profiles_promise_what_was_asked() -> None:
    chat = load_profile("chat")
    assert (chat.slo.rate_qps, chat.slo.latency_p99_ms) == (20, 800)
    assert (chat.quality.max_perplexity_change_pct, chat.limits.max_seq_len) == (2.0, 3072)
    finance = load_profile("finance").quality
    assert finance.within_measurement_error
    assert finance.max_perplexity_change_pct is None
    assert load_profile("realtime-voice").objective == "ttft"
    assert load_profile("long-document").limits.max_input_len > 4096
    assert load_profile("ci").evaluation.windows < chat.evaluation.windows


# --- reading


def test_a_profile_of_ones_own_needs_a_name_and_a_description(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, MINIMAL))
    assert profile == Profile(name="mine", description="Something.")
    assert profile == load_profile(str(write(tmp_path, b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())))


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    for name in list_profiles():
        shown = to_dict(load_profile(name))
        assert json.loads(json.dumps(shown)) == shown
        assert load_profile(write(tmp_path, yaml.safe_dump(shown, allow_unicode=True))) == load_profile(name)


def test_values_mean_what_people_expect(tmp_path: Path) -> None:
    text = "precisions: [fp32, 'int8']\nquality: {max_kl: 1e-3, max_perplexity_change_pct: 2}\nslo:\n  # ttft_ms: 3\n"
    profile = load_profile(write(tmp_path, MINIMAL + text))
    assert profile.slo.ttft_ms is None
    assert profile.quality.max_kl == 1e-3
    assert profile.precisions == ("fp32", "int8")
    assert load_profile(write(tmp_path, "name: no\ndescription: on\n")).name == "no"


@pytest.mark.parametrize(
    ("text", "line", "said", "hint"),
    [
        ("limits:\n  max_batchsize: 3\n", 4, "unknown key 'limits.max_batchsize'", "did you mean 'max_batch_size'?"),
        ("qualty: {}\n", 3, "unknown key 'qualty'", "did you mean 'quality'?"),
        ("slo: {zzz: 1}\n", 3, "unknown key 'slo.zzz'", "keys here: ttft_ms, tpot_ms, latency_p99_ms, rate_qps"),
        ("limits: {max_batch_size: 0}\n", 3, "limits.max_batch_size: ", None),
        ("limits: {max_batch_size: '16'}\n", 3, "limits.max_batch_size: ", None),
        ("limits: {max_batch_size: 1.5}\n", 3, "limits.max_batch_size: ", None),
        ("limits: {max_batch_size: true}\n", 3, "limits.max_batch_size: ", None),
        ("limits: [16]\n", 3, "limits: ", None),
        ("limits: 5\n", 3, "limits: ", None),
        ("slo:\n  ttft_ms: 0\n", 4, "slo.ttft_ms: ", None),
        ("slo:\n\n  ttft_ms: .inf\n", 5, "slo.ttft_ms: ", None),
        ("slo: {ttft_ms: 1e999}\n", 3, "slo.ttft_ms: ", None),
        ("quality: {min_top1_pct: 101}\n", 3, "quality.min_top1_pct: ", None),
        ("objective: speed\n", 3, "objective: ", None),
        ("calibration: {method: minmax}\n", 3, "calibration.method: ", None),
        ("precisions: []\n", 3, "precisions: ", None),
        ("precisions: [int8]\n", 1, "the baseline fp32 is not among the precisions", None),
        ("precisions: [fp32, fp32]\n", 1, "precisions holds one twice", None),
        ("workload:\n  concurrency:\n  - 1\n  - x\n", 6, "workload.concurrency.1: ", None),
        ("limits: {max_input_len: 2048}\n", 3, "limits: max_input_len must be below max_seq_len", None),
        ("limits: {max_num_tokens: 8}\n", 3, "limits: max_num_tokens must be at least max_batch_size", None),
        ("limits: {kv_pool_tokens: 64}\n", 3, "limits: kv_pool_tokens must hold one sequence", None),
        ("workload: {min_seconds: 400}\n", 3, "workload: min_seconds must not exceed max_seconds", None),
        ("workload: {prompt_tokens: [2000]}\n", 1, "prompts of 2000 tokens exceed max_input_len", None),
        ("workload: {output_tokens: 2000}\n", 1, "2256 tokens of prompt and answer exceed max_seq_len", None),
        ("name: again\n", 3, "key 'name' comes twice", None),
        ("slo: &a {}\nquality: *a\n", 3, "an alias (*name) is not read", None),
        ("slo: &a {b: *a}\n", 3, "an alias (*name) is not read", None),
        ("slo: !!python/object:os.system {}\n", 3, "the tag 'tag:yaml.org,2002:python/object:os.system' is not", None),
        ("slo: !!set {a}\n", 3, "the tag 'tag:yaml.org,2002:set' is not read", None),
        ("objective: !!int x\n", 3, "'x' is not of the type int", None),
        ("objective: !!map x\n", 3, "'x' is not of the type map", None),
        ("objective: !mine x\n", 3, "the tag '!mine' is not read", None),
        ("? [a]\n: b\n", 3, "a key is not a word", None),
        ("slo: {\n", 4, "not YAML", None),
        ("\tslo: 1\n", 3, "not YAML", None),
        ("---\nname: b\n", 3, "not YAML", None),
    ],
)
def test_a_fault_is_told_with_its_line_and_key(
    tmp_path: Path, text: str, line: int, said: str, hint: str | None
) -> None:
    error = refusal(tmp_path, MINIMAL + text)
    assert f"mine.yaml line {line}: {said}" in str(error)
    if hint is not None:
        assert error.hint == hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a profile"),
        ("- a\n", "not a profile"),
        ("text", "not a profile"),
        ("name: x\n", "key 'description' is missing"),
        ("name: Has Spaces\ndescription: x\n", "line 1: name: "),
        (b"name: \xff\n", "line 1: not UTF-8 text"),
        (b"name: a\n\x00", "not YAML"),
        ("[" * 5000, "not YAML (nested too deeply)"),
        ("zz: 1\nyy: 2\n", "line 1: unknown key 'zz' (and 3 more)"),
    ],
)
def test_what_is_no_profile_at_all(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in str(refusal(tmp_path, text))


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(UsageError) as caught:
        load_profile("finanse")
    assert caught.value.hint == "did you mean 'finance'?"
    with pytest.raises(UsageError) as caught:
        load_profile("zzz")
    assert caught.value.hint is not None
    assert "chat, ci, finance, long-document, realtime-voice" in caught.value.hint
    with pytest.raises(UsageError, match="no such profile file"):
        load_profile("nowhere/mine.yaml")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "description", "limits", "slo", "workload", "max_seq_len", "ttft_ms", "x"]),
                inner,
            )
        ),
        max_leaves=10,
    ).map(lambda value: yaml.safe_dump(value, allow_unicode=True))
    | st.text(max_size=30),
)
def test_any_file_is_a_profile_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        profile = load_profile(path)
    except UsageError as error:
        assert "\n" not in f"{error}{error.hint}"
    else:
        assert profile.name


# --- the words


def sections(kind: Any = Profile) -> list[Any]:
    below = [field.default for field in dataclasses.fields(kind) if dataclasses.is_dataclass(field.default)]
    return [kind, *(section for default in below for section in sections(type(default)))]


def test_every_key_is_described() -> None:
    schema = profile_type().json_schema()
    described = {"Profile": schema, **schema["$defs"]}
    assert {kind.__name__ for kind in sections()} == set(described)
    for name, section in described.items():
        assert section["additionalProperties"] is False
        assert section["description"]
        for key, field in section["properties"].items():
            assert "$ref" in field or field.get("description", "").endswith("."), f"{name}.{key}"


def test_the_documentation_is_made_from_these_descriptions() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "build_profiles.py"))
    hint = "run python docs/build_profiles.py"
    assert (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8") == made["reference"](), hint
    schema = json.loads((ROOT / "docs" / "profile.schema.json").read_text(encoding="utf-8"))
    assert schema == json.loads(made["json_schema"]()), hint
