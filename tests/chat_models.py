"""Small folders of models with a tokenizer and a chat template, as they are published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
          "Be kind.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
          "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
TRIMMING = ("{{ bos_token }}{% for message in messages %}\n    {{ '<|im_start|>' + message.role + '\n\n' }}\n"
            "    {{ message.content | trim + eos_token }}\n{% endfor %}")
GENERATION = ("{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
              "<|im_end|>{% endgeneration %}{% else %}[{{ message.content }}]{% endif %}\n{% endfor %}")
TOOLS = ("{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
         "{% for call in m.tool_calls or () %}{{ call.name }}({{ call.arguments }}){% endfor %}{{ m.content or '' }}"
         "{{ eos_token }}{% endfor %}")
LEADING_BLANK = "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
WITHOUT_THOUGHTS = ("{% for m in messages %}{{ m.role + '\n' + m.content.split('</think>')[-1].lstrip('\n') }}"
                    "{{ eos_token }}{% endfor %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tokenizer(*, around: bool = False, merges: Sequence[tuple[str, str]] = ()) -> Any:
    """Return a tokenizer of bytes with three special tokens; `around`: it puts the first before a text."""
    import tokenizers

    alphabet = {symbol: number for number, symbol in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    alphabet |= {"".join(pair): len(alphabet) + number for number, pair in enumerate(merges)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, list(merges)))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    if around:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)])
    return made


def model_folder(folder: Path, template: Any = CHATML, *, around: bool = False) -> Path:
    """Write a folder of a model that chats, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(around=around).save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def conversation(*contents: str) -> dict[str, Any]:
    """Return a row of a conversation in which user and assistant take turns."""
    return {"messages": [{"role": ("user", "assistant")[index % 2], "content": content}
                         for index, content in enumerate(contents)]}


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows as jsonl; text is written as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
