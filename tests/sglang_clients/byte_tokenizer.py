#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tokenizer for SGLang's benchmark clients that counts tokens as Larder's reference engine does.

  tests/sglang_clients/byte_tokenizer.py DIRECTORY        then: python -m sglang.bench_serving --tokenizer DIRECTORY ...

It knows the 128 characters of ASCII, each one token. It has no token for other bytes, because the clients draw random
ids below the size of the vocabulary and send their text: random bytes above 127 are no text.
"""

import json
import pathlib
import sys

_FIRST_STAND_IN = 256  # the format writes a byte without a visible form as a character from here on, in order
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _names():
    """How the byte-level format writes each of the 128 bytes."""
    hidden = [byte for byte in range(256) if not (33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte)]
    stand_ins = {byte: chr(_FIRST_STAND_IN + index) for index, byte in enumerate(hidden)}
    return [stand_ins.get(byte, chr(byte)) for byte in range(128)]


def write(folder):
    """Writes the files into `folder`, which is made if need be, and returns it."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {name: token for token, name in enumerate(_names())}, "merges": []},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,  # else text would lose spaces, and a prompt tokens
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(write(sys.argv[1]))
