"""Writes what Jinja2, set up as transformers sets it up, makes of the chats.

    python render_chats.py ../tests/data/chats.json

Every case has a template (a file in templates/ beside the chats), messages and
options; the script adds `expected` (the text) or `raises` (the message of
raise_exception). Made with Jinja2 3.1.6. The set-up follows the description in
the documentation of transformers: a sandboxed environment with trim_blocks and
lstrip_blocks, loop controls, json.dumps without HTML escapes, and a generation
tag that prints its body.
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """`{% generation %}` prints its body in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller):
        return caller()


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def main() -> None:
    path = pathlib.Path(sys.argv[1])
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    cases = json.loads(path.read_text(encoding="utf-8"))
    for case in cases:
        now = datetime.datetime.fromtimestamp(case.get("now", 0), datetime.timezone.utc)
        environment.globals["strftime_now"] = now.strftime
        source = (path.parent / "templates" / case["template"]).read_text(encoding="utf-8")
        case.pop("expected", None)
        case.pop("raises", None)
        try:
            case["expected"] = environment.from_string(source).render(
                messages=case["messages"],
                tools=case.get("tools"),
                documents=None,
                add_generation_prompt=case.get("add_generation_prompt", False),
                bos_token=case.get("bos", ""),
                eos_token=case.get("eos", ""),
                **case.get("variables", {}),
            )
        except Raised as raised:
            case["raises"] = str(raised)
    path.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
