"""Chat templates: Jinja text that came with a model, rendered in a sandbox to what `transformers` renders.

The environment follows the documented behaviour of `apply_chat_template`: immutable sandbox, `trim_blocks` and
`lstrip_blocks`, loop controls, a `{% generation %}` tag that only marks, `tojson` without HTML escapes,
`raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtbuild.errors import InputRefused

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]
"""One turn of a conversation: at least `role` and `content`."""

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""What a conversation becomes for a base model, which has no template of its own."""


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(jinja2.ext.Extension):
        """`{% generation %}…{% endgeneration %}` marks what the assistant wrote and leaves the text as it is."""

        tags = {"generation"}  # noqa: RUF012 (the name and type are Jinja's)

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> str:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    return environment


def compile_template(source: str, where: str) -> Callable[..., str]:
    """Compile a chat template; the result takes the template's variables and returns text.

    Raises InputRefused, from here for a syntax error and from the result for anything the template raises.
    """
    import jinja2

    try:
        template = _environment().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputRefused(f"chat template does not parse: {line}{error}", where=where) from error

    def render(**variables: Any) -> str:
        try:
            return template.render(**variables)
        # A template is a program someone else wrote: whatever it raises is its refusal, not our bug.
        except Exception as error:
            raise InputRefused(f"chat template refused the conversation: {error}", where=where) from error

    return render


def render_chat(
    render: Callable[..., str],
    messages: Sequence[Message],
    special_tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool,
    now: datetime.datetime | None,
) -> str:
    """Render a conversation. `now` is the time templates that print a date see; None is the present."""

    def strftime_now(pattern: str) -> str:
        return (now or datetime.datetime.now()).strftime(pattern)

    return render(
        messages=[dict(message) for message in messages],
        tools=None,
        documents=None,
        add_generation_prompt=add_generation_prompt,
        strftime_now=strftime_now,
        **special_tokens,
    )
