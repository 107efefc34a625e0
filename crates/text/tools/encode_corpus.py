"""Writes the token ids that the Hugging Face tokenizers library gives for the corpus.

    python encode_corpus.py TOKENIZER.json ../tests/data/corpus.json

Reads the `name` and `text` of every case in the file and rewrites it with
`parsed` (control tokens recognized) and `as_text` (control tokens as text).
TOKENIZER.json is the same vocabulary as that of models/demo.gguf in the format
of the tokenizers library. Made with tokenizers 0.23.2 (Python package), which
splits with the Oniguruma engine.
"""

import json
import sys

from tokenizers import Tokenizer


def main() -> None:
    tokenizer = Tokenizer.from_file(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        cases = json.load(file)
    for case in cases:
        tokenizer.encode_special_tokens = False
        case["parsed"] = tokenizer.encode(case["text"], add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        case["as_text"] = tokenizer.encode(case["text"], add_special_tokens=False).ids
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
