"""Write `profiles.md` and `profile.schema.json` from the descriptions in `trtbuild/profile.py`.

python docs/build_profiles.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtbuild.profile import list_profiles, load_profile, profile_type

HERE = Path(__file__).parent

_HEADER = """\
<!-- Written by docs/build_profiles.py from the descriptions in trtbuild/profile.py; edit those. -->

# Profiles

A profile says what a deployment must achieve, what is built for it and how it is measured. `trtbuild profiles list`
names the built-in ones, `trtbuild profiles show NAME` prints one with every default filled in. To make your own, write
what differs from the defaults below into a YAML file and give its path wherever a name is taken; only `name` and
`description` are required:

```yaml
name: support-desk
description: Answers customers of the web shop.
slo: {ttft_ms: 500, rate_qps: 5}
quality: {max_perplexity_change_pct: 1.0}
```

`trtbuild profiles validate FILE` checks a file. An unknown key, a value of the wrong type and limits that contradict
each other are errors that name file, line and key. `no`, `on` and the like are text, not truth values; a key may not
come twice; aliases are not read. For completion in an editor there is a JSON schema, `profile.schema.json`.

## The built-in profiles

| name | what for | precisions | what decides |
|---|---|---|---|
"""


def _default(field: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    return "none" if field.get("default") is None else f"`{json.dumps(field['default'])}`"


def _bounds(field: Mapping[str, Any]) -> str:
    """What values are taken, in words."""
    if "anyOf" in field:
        kinds = [_bounds(kind) for kind in field["anyOf"]]
        return " or ".join(kind for kind in kinds if kind != "null") + ", or null"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        return f"list of {_bounds(field['items'])}".replace("number", "numbers")
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    limits = [
        f"{word} {field[key]:g}"
        for key, word in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"))
        if key in field and field[key] < 2**31 - 1
    ]
    return " ".join([words.get(field["type"], field["type"]), *limits])


def _section(title: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## {title}\n\n{schema['description']}\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
    for key, field in schema["properties"].items():
        if "$ref" in field:
            continue
        required = key in schema.get("required", ())
        yield f"| `{key}` | {_bounds(field)} | {_default(field, required)} | {field['description']} |\n"


def reference() -> str:
    """The content of `profiles.md`."""
    schema = profile_type().json_schema()
    parts = [_HEADER]
    for profile in map(load_profile, list_profiles()):
        precisions = ", ".join(profile.precisions)
        parts.append(f"| `{profile.name}` | {profile.description} | {precisions} | {profile.objective} |\n")
    parts.extend(_section("The top of the file", schema))
    for key, field in schema["properties"].items():
        if "$ref" in field:
            parts.extend(_section(f"`{key}`", schema["$defs"][field["$ref"].rpartition("/")[2]]))
    return "".join(parts)


def json_schema() -> str:
    """The content of `profile.schema.json`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **profile_type().json_schema()}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (HERE / "profiles.md").write_text(reference(), encoding="utf-8")
    (HERE / "profile.schema.json").write_text(json_schema(), encoding="utf-8")
