#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is docs/metrics.md, which names every metric of src and of SGLang's plug-in, as it would be written from the sources?

  tools/check_metrics_page.py           says so, and names sources with metrics that are in no part of the page
  tools/check_metrics_page.py --write   writes the page
"""

import argparse
import re
import textwrap

import source_tree

PAGE = "docs/metrics.md"
LITERALS = r'((?:"(?:\\.|[^"\\])*"\s*)+)'
NAME = r'"((?:larder_|sglang:)[a-z0-9_]+)"'
TIERS = "src/server/llama/completion_front.cc"  # export_tiers(): names without their beginning
PLUGIN = "python/larder/sglang/metrics_page.py"
# Heading, whose they are, sources, beginning of the names of export_tiers() if they are among them.
PARTS = (
    ("Requests and tiers", "`larder serve --model NAME`. The names of SGLang mean the same here.",
     ("src/engine/request_metrics.cc", "src/server/api_server.cc"), ""),
    ("The cache itself", "`larder serve --model NAME`, `larder_connector_metrics()` of the C interface, and C++ "
     "engines that give `CacheParts` or `ConnectorParts` a registry ([embedding.md](embedding.md#a-store-behind-it)).",
     ("src/controller/cache_metrics.cc", "src/controller/tenants.cc"), ""),
    ("Every storage", "`larder serve`, of both kinds, `larder proxy`, SGLang's ranks, `larder_store_metrics()` of the "
     "C interface, and C++ engines that give `make_pipeline()` a registry.",
     ("src/storage/pipeline/pipeline_metrics.cc",), ""),
    ("Page stores", "Whatever opens its store as the C interface does: SGLang's ranks (`metrics_port`), `larder proxy` "
     "and `larder serve --model x.gguf` (each with `--store`), `larder_store_metrics()`. Connectors, and so the proxy "
     "and servers of GGUF files, use the store's backend itself: there all but `larder_door_store_*` stay at 0.",
     ("src/door/page_store_stats.cc",), ""),
    ("Connectors", "`larder_connector_metrics()` of the C interface, beside those of the cache itself "
     "([c_api.md](c_api.md#statistics)). What means the same in `larder serve --model NAME` has the same name.",
     ("src/door/connector_metrics.cc", "src/controller/connector.cc"), ""),
    ("SGLang's plug-in", "SGLang's ranks (`metrics_port`), beside those of their page store.", (PLUGIN,), ""),
    ("The proxy", "`larder proxy`.", ("src/server/llama/proxy_metrics.cc", "src/server/llama/llama_proxy.cc"),
     "larder_proxy"),
    ("GGUF files", "`larder serve --model x.gguf`.",
     ("src/server/llama/libllama/llama_calls.cc", "src/server/llama/libllama/llama_service.cc"), "larder_serve"),
    ("Misses of GGUF files", "`larder proxy` and `larder serve --model x.gguf`.", (TIERS,), ""),
    ("KV events", "`larder serve --model NAME` with `--kv-events-config`.",
     ("src/events/real_kv_event_publisher.cc",), ""),
    ("Recorded traces", "Servers with `--record-trace`.", ("src/server/trace/trace_writer.cc",), ""),
    ("The metadata server", "`larder metadata-server`.", ("src/server/metadata_server.cc",), ""),
    ("Every server", "`larder serve`, `larder proxy` and `larder metadata-server`; `larder_metrics_refused_total` of "
     "every registry.", ("src/server/real_http_session.cc", "src/base/metrics.cc"), ""),
)
# The label that with() of a class adds to those it is given.
BASE_LABELS = {"src/engine/request_metrics.cc": "model_name", "src/storage/pipeline/pipeline_metrics.cc": "backend"}
# What registers a metric, and its kind: "" for add_family(), whose last argument says it.
CALLS = {"counter": "counter", "count": "counter", "gauge": "gauge", "set": "gauge", "histogram": "histogram",
         "add_family": ""}


def joined(literals):
    """C++ string literals side by side, as one text."""
    return "".join(re.findall(r'"((?:\\.|[^"\\])*)"', literals)).replace('\\"', '"')


def with_constants(text):
    """The text with names of string constants replaced by what they are."""
    constants = {}
    for line in re.findall(r"constexpr (?:std::string_view|const char\*) (k\w+ = [^;]+);", text):
        constants.update(re.findall(r"(k\w+) = " + LITERALS, line))
    for name, value in constants.items():
        text = re.sub(r"\b" + name + r"\b(?! =)", lambda _, value=value: value, text)
    return text


def call_at(text, begin):
    """The arguments of the call whose parenthesis is before `begin`."""
    depth, is_quoted = 1, False
    for end in range(begin, len(text)):
        if text[end] == '"' and text[end - 1] != "\\":
            is_quoted = not is_quoted
        depth += 0 if is_quoted else (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            return text[begin:end]
    return text[begin:]


def labels_in(words, path):
    """Names of labels in a C++ expression: {{"a", x}}, with("a", x), with({{"a", x}}), labels_."""
    found = [BASE_LABELS[path]] if path in BASE_LABELS and re.search(r"\bwith\(|\blabels_", words) else []
    return found + re.findall(r'(?:\{|\bwith\()"(\w+)",', words)


def labels_of(text, begin, rest, path):
    """Labels of a call that begins there; `rest`: its arguments behind the help."""
    found = labels_in(rest, path)
    for variable in re.findall(r"\b(labels|why|miss)\b", rest):
        before = text[:begin]
        defined = list(re.finditer(r"\bLabels " + variable + r"\s*[={]", before))
        if defined:
            body = before[defined[-1].start():]
            found += labels_in(body[:body.index(";")], path)
            found += re.findall(r"\b" + variable + r'\.emplace_back\("(\w+)"', body)
    return list(dict.fromkeys(found))


def metrics_of_plugin():
    """[(name, kind, labels, help)]: the page is written as text there."""
    text = source_tree.text_of(PLUGIN)
    return [(name, kind, re.findall(r'(\w+)="\{', "".join(re.findall(name + r"\{\{.+?\}\}", text, re.S))), meaning)
            for name, meaning, kind in re.findall(r'# HELP (\w+) (.+)",\s*"# TYPE \w+ (\w+)"', text)]


def metrics_of(path):
    """[(name, kind, labels, help)] that a source registers, in its order; names of export_tiers() as they stand."""
    if path == PLUGIN:
        return metrics_of_plugin()
    text, found = with_constants(source_tree.text_of(path)), {}
    name = NAME if path != TIERS else r'"([a-z0-9_:]+)"'
    pattern = r"\b(" + "|".join(CALLS) + r")\(\s*(?:out,\s*)?" + name + r",\s*" + LITERALS
    for match in re.finditer(pattern, text):
        call, metric, meaning = match.group(1), match.group(2), joined(match.group(3))
        rest = call_at(text, match.start() + len(call) + 1)[match.end() - match.start() - len(call) - 1:]
        kind, labels = CALLS[call], labels_of(text, match.start(), rest, path)
        if call in ("set", "count"):  # a lambda of the same function
            body = text[text.rindex(f"const auto {call} = ", 0, match.start()):match.start()]
            labels = labels_in(body[:body.index("};")], path)
        if call == "add_family":
            kind = "gauge" if re.search(r',\s*"gauge"$', rest) else "counter"
            labels = re.findall(r'^,\s*"(\w+)"', rest)
        old = found.get(metric, (metric, kind, [], meaning))
        found[metric] = (metric, old[1], list(dict.fromkeys(old[2] + labels)), old[3])
    if path == "src/base/metrics.cc":  # a registry's own
        metric, meaning = re.search(r"append_header\(out, " + NAME + r", " + LITERALS, text).groups()
        found[metric] = (metric, "counter", [], joined(meaning))
    return list(found.values())


def part_of(sources, prefix):
    found = [metric for path in sources for metric in metrics_of(path)
             if path != TIERS or metric[0].startswith("larder_")]
    if prefix:
        found += [(f"{prefix}_{name}", *rest) for name, *rest in metrics_of(TIERS) if not name.startswith("larder_")]
    return found


def page():
    lines = ["# Metrics", "",
             "<!-- tools/check_metrics_page.py --write writes this page; do not edit it by hand. -->", "",
             "Every metric that a server has at `/metrics`, with what its `# HELP` line says. Which of them to watch,",
             "and what to do, says [monitoring.md](monitoring.md#metrics-that-matter). A histogram is three series,",
             "whose names end in `_bucket`, `_sum` and `_count`.", ""]
    for heading, whose, sources, prefix in PARTS:
        lines += [f"## {heading}", "", textwrap.fill(whose, 120, break_on_hyphens=False), ""]
        lines += ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for name, kind, labels, meaning in part_of(sources, prefix):
            shown = ", ".join(f"`{label}`" for label in labels)
            lines.append(f"| `{name}` | {kind} | {shown} | {meaning.rstrip('.')} |".replace("|  |", "| |"))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def left_out(text):
    """Names that stand in a source, where a metric's could, and not on the page."""
    problems = []
    for path in source_tree.files((".cc",), ("src",)):
        if path.name.endswith("_test.cc"):
            continue
        source = source_tree.text_of(path)
        for match in re.finditer(r"(?:counter|gauge|histogram|set|count|add_family)\(\s*(?:out,\s*)?" + NAME, source):
            if f"`{match.group(1)}`" not in text:
                line = source[:match.start()].count("\n") + 1
                problems.append((path, line, f"{match.group(1)} is in no part of {PAGE}: mend PARTS in {__file__}"))
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    text, path = page(), source_tree.ROOT / PAGE
    problems = left_out(text)
    if parser.parse_args().write:
        path.write_text(text, encoding="utf-8")
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        problems.append((PAGE, 1, "run tools/check_metrics_page.py --write"))
    source_tree.report("metrics page", problems)


main()
