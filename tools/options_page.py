#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/options.md from the option tables in the sources, and from what SGLang has (below).

  tools/options_page.py                  writes the page
  tools/options_page.py --check          says whether the page is as it would be written
  tools/options_page.py --binary LARDER  says whether LARDER's --help has the same options and defaults
"""

import argparse
import re
import subprocess
import sys

import source_tree

PAGE = "docs/options.md"
LITERALS = r'((?:"(?:\\.|[^"\\])*"\s*)+)'
VALUE = r"(\"[^\"]*\"|k[A-Z]\w+|-?[\d.']+\w?)"
# What the defaults of a command's options are members of, beside its own file.
STRUCT_FILES = (
    "src/cli/real_log_option.h",
    "src/cli/front_options.h",
    "src/cli/orderly_stop.h",
    "bench/plan_model.h",
    "bench/plan_sweep.h",
    "src/server/llama/libllama/llama_service.h",
    "src/server/listen_options.h",
    "src/server/http_listener.h",
    "src/server/tls_files.h",
    "src/server/trace/trace_recorder.h",
    "src/cli/replica_options.h",
    "src/storage/hf3fs/metadata_service.h",
)
# Heading, arguments of its --help, file, further files.
COMMANDS = (
    ("`larder serve --model x.gguf`", ("serve", "--model", "x.gguf"), "src/cli/serve_llama.cc", True),
    ("`larder proxy`", ("proxy",), "src/cli/proxy.cc", True),
    ("`larder metadata-server`", ("metadata-server",), "src/cli/metadata_server.cc", False),
    ("`larder stat`", ("stat",), "src/cli/stat.cc", False),
    ("`larder attach`", ("attach",), "src/cli/attach.cc", False),
    ("`larder detach`", ("detach",), "src/cli/detach.cc", False),
    ("`larder explain`", ("explain",), "src/cli/explain.cc", False),
    ("`larder plan`", ("plan",), "bench/plan_command.cc", False),
    ("`larder conformance`", ("conformance",), "src/cli/conformance.cc", False),
)
BACKENDS = (("file", "src/storage/file/file_backend.cc"), ("hf3fs", "src/storage/hf3fs/hf3fs_factory.cc"),
            ("memory", "src/storage/memory/memory_backend.cc"),
            ("mooncake", "src/storage/mooncake/mooncake_factory.cc"),
            ("plugin", "src/storage/plugin/plugin_backend.cc"))

# SGLang 0.5.23 (fields of its arg_groups) beside each option of `larder serve`; what is not here, SGLang has not.
SGLANG = {
    "config": "other: SGLang's file is YAML",
    "log-level": "same",
    "model": "other: `--model-path` (or `--model`) names a folder of weights or a repository; here a preset or a file",
    "page-size": "same; SGLang chooses the default by model and attention backend",
    "context-length": "same; SGLang also takes `32k`",
    "max-total-tokens": "same; SGLang computes the default from the GPU's memory",
    "max-mamba-cache-size": "same; SGLang computes the default from `--mamba-full-memory-ratio`",
    "swa-full-tokens-ratio": "same",
    "max-running-requests": "same; SGLang computes the default",
    "max-queued-requests": "same; SGLang sets no default",
    "chunked-prefill-size": "same; SGLang computes the default, and takes -1 for off",
    "kv-events-config": "same keys, and two more ([kv_events.md](kv_events.md)); the default endpoint is loopback",
    "num-reserved-decode-tokens": "other: SGLang has 512, among its options of disaggregated decoding",
    "random-seed": "same; SGLang draws the default",
    "disable-radix-cache": "same",
    "radix-eviction-policy": "same name; SGLang has `lru` (its default), `lfu`, `slru`, `priority`, `tlru`",
    "enable-hierarchical-cache": "other default: off in SGLang, which also calls it `--enable-hicache`",
    "hicache-ratio": "other: SGLang sizes a host pool beside each device pool; here all pools share these bytes",
    "hicache-size": "other: SGLang means each rank, and splits it among the host pools; here all pools share it",
    "hicache-write-policy": "same",
    "hicache-mem-layout": "same; SGLang has `page_first_kv_split` (Ascend), too",
    "hicache-storage-backend": "`file`, `hf3fs` and `mooncake` are names in both, but neither reads the other's "
                               "pages; Larder in "
                               "SGLang is `dynamic` ([sglang.md](sglang.md))",
    "hicache-storage-prefetch-policy": "same",
    "hicache-storage-backend-extra-config": "same form; the keys are the backend's "
                                            "([below](#keys-of-the-extra-config))",
    "host": "same",
    "port": "same",
    "api-key": "same",
    "admin-api-key": "same",
    "ssl-certfile": "same; a renewed one is taken up without `--enable-ssl-refresh`",
    "ssl-keyfile": "same; there is no `--ssl-keyfile-password`",
    "ssl-ca-certs": "same; here clients without a certificate are refused",
    "enable-get-state-changes": "not in SGLang, whose `/flush_cache` always takes GET, too",
    "served-model-name": "same; in SGLang it is also part of the `file` backend's keys",
}
# Variables that SGLang's backends read.
SGLANG_VARIABLES = (
    ("SGLANG_HICACHE_FILE_BACKEND_*", "no effect; `max_size` and `directory` are keys of the extra config"),
    ("min_free_space, eviction_ratio, enable_metadata_cache, metadata_ttl",
     "keys of SGLang's `file` backend, refused: `max_size` bounds a store, and what was used least recently leaves"),
    ("SGLANG_HICACHE_HF3FS_CONFIG_PATH", "taken: the file of keys for backend `hf3fs`, where no extra config is given"),
    ("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "taken: the same for backend `mooncake`"),
    ("MOONCAKE_MASTER, _LOCAL_HOSTNAME, _TE_META_DATA_SERVER, _GLOBAL_SEGMENT_SIZE, _PROTOCOL, _DEVICE",
     "taken by backend `mooncake` for keys that are not given ([mooncake.md](mooncake.md))"),
)
# Keys of the extra config that the cache keeps to itself: member of CacheConfig ("": none), meaning, SGLang.
CACHE_KEYS = (
    ("prefetch_threshold", "prefetch_threshold", "tokens that storage must have at least for a prefetch", "same"),
    ("prefetch_timeout_base", "prefetch_timeout_base", "seconds that a request waits with policy `timeout`", "same"),
    ("prefetch_timeout_per_ki_token", "prefetch_timeout_per_ki_token", "seconds more per 1,024 tokens", "same"),
    ("prefetch_timeout_max", "prefetch_timeout_max", "seconds at most", "not in 0.5.23; it had it before"),
    ("tp_lcm_size", "", "taken, and not needed: `larder serve` has one rank",
     "same name; for other numbers of ranks, also of [Larder in SGLang](sglang.md#other-numbers-of-ranks)"),
    ("hicache_storage_pass_prefix_keys", "", "taken, and not needed",
     "same name; [Larder in SGLang](sglang.md#start) needs it"),
)
SECONDS = {"seconds": 1, "milliseconds": 1e-3}
# What --help writes for values whose name the sources do not say; the page leaves it out.
PLAIN_VALUES = ("TEXT", "UINT", "FLOAT", "INT")


def joined(literals):
    """C++ string literals side by side, as one text."""
    parts = re.findall(r'"((?:\\.|[^"\\])*)"', literals)
    return "".join(parts).replace('\\"', '"').replace("\\n", " ")


def split_default(text):
    """("tokens per page", "the model's") of "tokens per page (the model's)"."""
    match = re.fullmatch(r"(.*?)\s*\(([^()]*)\)", text)
    return (match.group(1), match.group(2)) if match else (text, "")


LOG_OPTIONS = "src/cli/real_log_option.cc"
TLS_OPTIONS = "src/cli/tls_options.cc"
STOP_OPTIONS = "src/cli/orderly_stop.cc"


def serve_options():
    """[(group, name, value, meaning, default)] of `larder serve`, in the order of the table."""
    text = source_tree.text_of("src/engine/option_table.cc")
    words = {name: re.findall(r'"([^"]*)"', body)
             for name, body in re.findall(r"(k\w+) = \{([^}]*)\};", text)}
    serve = source_tree.text_of("src/cli/serve.cc")
    groups = dict(re.findall(r'\{"([\w-]+)", "([^"]+)"\}', serve))
    found = []
    for match in re.finditer(r'app\.add_option\("--([\w-]+)", line\.\w+, ' + LITERALS + r'\)\s*->type_name\("(\w+)"',
                             serve):
        meaning, default = split_default(joined(match.group(2)))
        found.append(("General", match.group(1), match.group(3), meaning, default or "none"))
    table = text[text.index("kTable"):text.index("};", text.index("kTable"))]
    for entry in table.split("OptionEntry{")[1:]:
        match = re.match(r'\s*\{"([\w-]+)",\s*"([^"]*)",\s*' + LITERALS, entry)
        name, value, help_text = match.group(1), match.group(2), joined(match.group(3))
        meaning, default = split_default(help_text)
        choices = [words[word] for word in re.findall(r"\b(k\w+)\b", entry) if word in words]
        if choices:
            meaning += ": " + ", ".join(f"`{word}`" for word in choices[0])
        found.append((groups.get(name, "Other"), name, value, meaning, default or ("off" if not value else "none")))
    return found


def sglang_only():
    """Rows of the table in src/engine/sglang_options.cc."""
    text, rows = source_tree.text_of("src/engine/sglang_options.cc"), []
    entry = r'SglangOption\{"([^"]+)",\s*"([^"]*)",\s*"([^"]*)",\s*k(\w+),\s*' + LITERALS
    for match in re.finditer(entry, text):
        names, value, default, answer, why = match.groups()
        shown = ", ".join(f"`--{name}{' ' + value if value else ''}`" for name in names.split(", "))
        why = re.sub(r"(--[\w-]+)", r"`\1`", joined(why))
        rows.append((shown, code(default), answer.lower(), why))
    return rows


def constant(name, texts):
    for text in texts:
        match = re.search(r"\b" + name + r" = ([^;]+);", text)
        if match:
            shifted = re.fullmatch(r"std::uint\d\d_t\{(\d+)\} << (\d+)", match.group(1))
            return str(int(shifted.group(1)) << int(shifted.group(2))) if shifted else match.group(1).replace("'", "")
    return name


def default_of(member, texts):
    """What `member` ("o.saves.page_size") is initialized with in the first of `texts` that does so; "": nothing."""
    last = member.strip().split(".")[-1]
    assigned = re.escape(member.strip().split(".", 1)[-1]) if "." in member else re.escape(last)
    for pattern in (r"\b(?:s|o)\." + assigned + " = " + VALUE + ";", r"\b" + last + r"(?: = |\{)" + VALUE + "[;,}]"):
        for text in texts:
            match = re.search(pattern, text)
            if match:
                value = match.group(1).strip().strip('"')
                return constant(value, texts) if re.fullmatch(r"k[A-Z]\w+", value) else value.replace("'", "")
    return ""


def value_name(text, call, end):
    """What --help writes behind an option for its value, "GB/S" say, where the sources say it; else "". The option is
    given by `call`, add_option() or a function of the file's own, and its help ends at `end`."""
    statement = text[end:text.index(";", end)]
    own = re.search(r'->type_name\("([^"]+)"\)', statement) or re.match(r'\s*,\s*"([^"]+)"', statement)
    if own is None and not call.startswith("add_"):
        body = text[text.index(f"const auto {call} = ["):]
        own = re.search(r'->type_name\("([^"]+)"\)', body[:body.index("};")])
    return own.group(1) if own else ""


def command_options(path, has_cache_options):
    """[(name, name of its value, default, meaning)] of a command that names its options to CLI11. "(...)" at the end of
    a help text is the default, as in "(none)"."""
    paths = [path] + (["src/cli/front_options.cc"] if has_cache_options else [])
    texts = [source_tree.text_of(each) for each in paths]
    if "add_log_options(app" in texts[0]:
        texts.append(source_tree.text_of(LOG_OPTIONS))
    if "add_tls_options(app" in texts[0]:
        texts.append(source_tree.text_of(TLS_OPTIONS))
    if "add_stop_options(app" in texts[0]:
        texts.append(source_tree.text_of(STOP_OPTIONS))
    if "add_replica_options(app" in texts[0]:
        texts.append(source_tree.text_of("src/cli/replica_options.cc"))
    structs = [source_tree.text_of(each) for each in STRUCT_FILES if (source_tree.ROOT / each).is_file()]
    structs += [source_tree.text_of(each) for each in sorted((source_tree.ROOT / "src/server/llama").rglob("*.h"))]
    found = []
    for text in texts:
        for match in re.finditer(r'(\w+)\(\s*"((?:-\w,)?--[\w-]+)",\s*([^,"]+?),\s*' + LITERALS, text):
            call, name, member, help_text = match.groups()
            if call.startswith("check_"):
                continue  # of one option beside another, not of what an option is
            meaning, default = split_default(joined(help_text))
            value = "" if call == "add_flag" else value_name(text, call, match.end())
            default = "off" if call == "add_flag" else default or default_of(member, [text] + structs)
            found.append((name.replace(",", ", "), value, default or "none", meaning))
    return found


def backend_keys(name, path):
    text = source_tree.text_of(path)
    text = text[re.search(r'factory\.add\(\s*"' + name + '"', text).start():]
    keys = [(key, joined(default), joined(meaning))
            for key, default, meaning in re.findall(r'\{"(\w+)",\s*("[^"]*"),\s*' + LITERALS + r"\}", text)]
    if "kAnyOption" in text:
        keys.append(("any other", '', "goes to the library, which refuses those that it does not know"))
    return keys


def store_keys():
    text = source_tree.text_of("src/door/store_config.cc")
    text = text[text.index("store_option_help"):]
    return [(key, joined(default), joined(meaning)) for key, default, meaning in
            re.findall(r'\{"(\w+)",\s*("[^"]*"),\s*' + LITERALS + r"\}", text)]


def sglang_keys():
    text = source_tree.text_of("python/larder/sglang/__init__.py")
    keys = []
    for key, words in re.findall(r"^    (\w+)\s{2,}(\S.*)$", text, re.M):
        default, _, meaning = words.partition("; ")
        if not meaning or len(default.split()) > 2:
            default, meaning = "", words
        keys.append((key, default.strip('"').removesuffix(".0"), meaning))
    return keys


def cache_default(member):
    text = source_tree.text_of("src/controller/config.h")
    match = re.search(r"\b" + member + r" = (?:std::chrono::(\w+)\()?([\d']+)", text) if member else None
    if not match:
        return ""
    return f"{float(match.group(2)) * SECONDS.get(match.group(1), 1):g}"


def cell(text):
    return text.replace("|", r"\|")


def code(text):
    """Defaults that are words of a command line stand in code; others are words."""
    is_word = text in ("none", "on", "off", "random") or not re.fullmatch(r"[\w./:-]+", text)
    return text if is_word else f"`{text}`"


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows] + [""]


def serve_tables():
    options, lines = serve_options(), []
    unknown = set(SGLANG) - {name for _, name, _, _, _ in options}
    if unknown:
        sys.exit(f"options_page: larder serve has no {', '.join(sorted(unknown))}; mend SGLANG in {__file__}")
    for group in dict.fromkeys(option[0] for option in options):
        lines += [f"### {group}", ""]
        lines += table(("option", "default", "meaning", "SGLang"), [
            (f"`--{name}{' ' + value if value else ''}`", code(default), meaning, SGLANG.get(name, "not in SGLang"))
            for own, name, value, meaning, default in options if own == group])
    return lines


def page():
    lines = ["# Options", "", "<!-- tools/options_page.py writes this page; do not edit it by hand. -->", "",
             "Every option of the servers and of the storage backends, as the sources have them, beside those of",
             "SGLang 0.5.23.",
             "`larder COMMAND --help` prints the options of every command, also of those that are not here (`bench`,",
             "`replay`, `sim`, `store`, `quickstart`).", "",
             "## `larder serve`: the small engine", "",
             "Names are SGLang's where the thing is the same. In a file (`--config`) the keys are the names without",
             "dashes in front, with `-` or `_` between words. An unknown option is an error that names the nearest",
             "known one.", ""]
    lines += serve_tables()
    lines += ["## What SGLang has and `larder serve` has not", "",
              "A start command of SGLang can be pasted. What changes nothing here is taken, and the log says so; the",
              "rest is refused with these words, all at once.", ""]
    lines += table(("SGLang", "its default", "here", "why"), sglang_only())
    lines += table(("variable, or key of the extra config", "here"), [
        (", ".join(f"`{name}`" for name in names.split(", ")), here) for names, here in SGLANG_VARIABLES])
    lines += ["## Keys of the extra config", "",
              "`--hicache-storage-backend-extra-config` takes a JSON object, or `@FILE` (`.json`, `.toml`, `.yaml`).",
              "Sizes are `10G` (10^10 bytes) or `10Gi` (10 x 2^30). An unknown key is an error that lists the known",
              "ones.", "",
              "### With every backend of `larder serve`", ""]
    lines += table(("key", "default", "meaning", "SGLang"), [
        (f"`{key}`", cache_default(member), meaning, sglang) for key, member, meaning, sglang in CACHE_KEYS])
    for name, path in BACKENDS:
        lines += [f"### Backend `{name}`", ""]
        lines += table(("key", "default", "meaning"), [
            (f"`{key}`" if key != "any other" else key, code(default), meaning)
            for key, default, meaning in backend_keys(name, path)])
    lines += ["### Stores of the C and Python interface", "",
              "Beside the keys of their backend ([c_api.md](c_api.md)).", ""]
    lines += table(("key", "default", "meaning"), [(f"`{k}`", code(d), m) for k, d, m in store_keys()])
    lines += ["### Larder as SGLang's storage backend", "", "Beside the two tables above and SGLang's own keys "
              "([sglang.md](sglang.md#start)).", ""]
    lines += table(("key", "default", "meaning"), [(f"`{k}`", code(d), m) for k, d, m in sglang_keys()])
    for heading, _, path, has_cache_options in COMMANDS:
        lines += [f"## {heading}", ""]
        lines += table(("option", "default", "meaning"), [
            (f"`{name}{' ' + value if value else ''}`", code(default), meaning)
            for name, value, default, meaning in command_options(path, has_cache_options)])
    return "\n".join(lines).rstrip() + "\n"


def help_options(binary, arguments):
    """{name: (name of its value, default; None where --help prints none)}; None if the binary was built without the
    command."""
    done = subprocess.run([binary, *arguments, "--help"], capture_output=True, text=True, check=False)
    if "was built without" in done.stderr + done.stdout:
        return None
    found = {}
    for names, rest in re.findall(r"^  ((?:-\w,)?--[\w-]+)(.*)$", done.stdout, re.M):
        value, default = re.match(r"(?: (KEY=VALUE|[A-Z][A-Z|@/,.]*)(?:=(\S+))?(?=\s|$))?", rest).groups()
        found[names.replace(",", ", ")] = (value, default)
    found.pop("-h, --help", None)
    return found


def compare(binary):
    problems = []
    parsed = {("serve",): {f"--{name}": (None, None) for _, name, _, _, _ in serve_options()}}
    for _, arguments, path, has_cache_options in COMMANDS:
        parsed[arguments] = {name: (value, default)
                             for name, value, default, _ in command_options(path, has_cache_options)}
    for arguments, options in parsed.items():
        seen = help_options(binary, arguments)
        command = " ".join(arguments)
        if seen is None:
            print(f"LEFT OUT: {command}: {binary} was built without it")
            continue
        problems += [(PAGE, 1, f"{command}: {name} is in one of page and --help")
                     for name in set(options) ^ set(seen)]
        for name in set(options) & set(seen):
            (value, default), (seen_value, seen_default) = options[name], seen[name]
            if seen_default is not None and default is not None and default != seen_default:
                problems.append((PAGE, 1, f"{command}: {name} is {seen_default}, the page says {default}"))
            if value is not None and value != (seen_value or "") and (value or seen_value not in PLAIN_VALUES):
                problems.append((PAGE, 1, f"{command}: {name} takes {seen_value}, the page says {value or 'nothing'}"))
    source_tree.report("options", problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--binary", metavar="LARDER")
    arguments = parser.parse_args()
    if arguments.binary:
        compare(arguments.binary)
    text, path = page(), source_tree.ROOT / PAGE
    if not arguments.check:
        path.write_text(text, encoding="utf-8")
        return
    is_same = path.is_file() and path.read_text(encoding="utf-8") == text
    source_tree.report("options", [] if is_same else [(PAGE, 1, "run tools/options_page.py")])


main()
