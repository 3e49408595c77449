#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `larder` says about a wrong command line: the exit code, and a line that names the culprit and what it must be.

    wrong_arguments.py BINARY

Each case runs the command. None of them may start its work: nothing is on standard output. And what a command says
where its result cannot be written.
"""

import concurrent.futures
import http.server
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

# Exit code (None: any), arguments (a variable before them), words that standard error must have; behind a '!': must not
# have. @ stands for a directory with what put_files() makes, ASKS and OTHER for servers, STDIN and NOTHING for
# texts to read. Standard input is a pipe that has an object of JSON.
CASES = [
    (2, "bogus", ["larder: unknown command 'bogus'"]),
    (2, "serv", ["did you mean 'serve'?"]),
    (2, "bench multitrun", ["did you mean 'multiturn'?"]),
    (2, "bench bogus", ["larder bench: unknown benchmark 'bogus'"]),
    (2, "store bogus", ["larder store: unknown command 'bogus'"]),
    # The parser's own complaints, in our words.
    (2, "sim --seed 3", ["larder sim: unknown option --seed; did you mean --seeds?", "larder sim --help lists"]),
    (2, "serve --modle=gdn-tiny", ["larder serve: unknown option --modle; did you mean --model?"]),
    (2, "serve --hicache-ratoi 2", ["did you mean --hicache-ratio?"]),
    (2, "serve extra", ["larder serve: unexpected argument 'extra'"]),
    (2, "metadata-server extra", ["unexpected argument 'extra'"]),
    (2, "stat --zzz", ["larder stat: unknown option --zzz ("]),
    (2, "store ls", ["larder store ls: DIRECTORY is missing"]),
    (2, "store export @", ["larder store export: DIRECTORY is missing"]),
    (2, "store forget @", ["larder store forget: --volume is missing"]),
    (2, "bench metadata --seconds x", ["larder bench metadata: --seconds: 'x' is no such value"]),
    (2, "sim --seeds", ["larder sim: --seeds: "]),
    (2, "plan", ["larder plan: --model PRESET, --model-file FILE, --gguf FILE or --hf-config FILE is missing"]),
    (2, "plan --model gdn-real --gguf x", ["larder plan: --model and --gguf: give one of them, not several"]),
    (2, "plan --model gdn-reel", ["larder plan: --model: no preset 'gdn-reel'"]),
    (2, "plan --model gdn-real --host 64", ["larder plan: --host requires --trace"]),
    (2, "plan --model gdn-real --trace x --host 64,much", ["larder plan: --host: 'much' is not a number in"]),
    (2, "plan --model gdn-real --trace x --plot x.gif", ["larder plan: --plot: 'x.gif' ends in neither .svg nor .png"]),
    (2, "plan --model gdn-real --trace @/none.jsonl", ["larder plan: cannot read the trace", "none.jsonl"]),
    (2, "plan --model gdn-real --trace @/blob", ["@/blob:1: "]),
    (2, "plan --model gdn-tiny --trace @/trace --policy foo", ["--policy is 'foo'", "lru, lfu, slru"]),
    (
        2,
        "plan --model gdn-tiny --trace @/trace --write-policy foo",
        ["--write-policy is 'foo'", "write_through_selective"],
    ),
    (2, "plan --model gdn-real --kv-dtype int4", ["--kv-dtype: 'int4' is none of f32, bf16, f16, fp8_e4m3", "!u8"]),
    (2, "replay @/none", ["larder replay: cannot read the trace", "@/none"]),
    (2, "replay @/blob", ["larder replay: @/blob:1: "]),
    (2, "replay @/trace --host 0 --storage 10", ["larder replay: --storage is ", "give --host above 0"]),
    (2, "replay @/trace --policy foo", ["--policy is 'foo'", "lru, lfu, slru"]),
    (2, "replay @/trace --write-policy foo", ["--write-policy is 'foo'", "write_through_selective"]),
    (2, "plan --hf-config @/none.json", ["larder plan: --hf-config: open ", "none.json"]),
    (2, "plan --gguf x --page-size 0", ["larder plan: --page-size: '0' is not a whole number in [1, 65536]"]),
    (2, "plan --gguf @/none.gguf", ["larder plan: --gguf: open ", "none.gguf"]),
    (2, "proxy", ["larder proxy: give --upstream URL, or a llama-server to start behind --"]),
    (2, "proxy --upstream http://127.0.0.1:9", ["larder proxy: --upstream needs --slot-dir"]),
    (2, "proxy --upstream foo --slot-dir @/s1", ["--upstream: 'foo' has no port; write http://host:port"]),
    (2, "proxy --upstream ftp://x --slot-dir @/s2", ["larder proxy: --upstream: 'ftp://x': ftp is not supported"]),
    (2, "proxy --upstream http://x:0 --slot-dir @/s3", ["--upstream: 'http://x:0': the port must be 1..65535"]),
    (2, "proxy --page-size 1 -- llama-server", ["--page-size: '1' is not a whole number in [2, 65536]"]),
    (2, "proxy --host-memory much -- llama-server", ["larder proxy: --host-memory: ", "64Mi or 200G", "!unlimited"]),
    (2, "proxy --host-memory unlimited -- llama-server", ["--host-memory: 'unlimited' is no size; write 64Mi or 200G"]),
    (2, "proxy --host-memory 900Ti -- llama-server", ["--host-memory: asked for 943718400 MiB of memory"]),
    (2, "proxy --store @/s --store-size 120% -- llama-server", ["--store-size: '120%' is no share from 1% to 100%"]),
    (2, "proxy --store @/s --store-size foo -- llama-server", ["--store-size: 'foo' is no size"]),
    (2, "proxy --store-size 10Gi -- llama-server", ["larder proxy: --store-size requires --store"]),
    # Storage is opened before llama-server is waited for.
    (2, "proxy --upstream http://127.0.0.1:1 --slot-dir @/s4 --store @/blob/x", ["@/blob"]),
    (2, "proxy --upstream http://127.0.0.1:1 --slot-dir @/s5 --store @/s --store-size 1", ["--store-size: "]),
    # Keys of a llama-server behind --: the first that it is given.
    (1, "proxy --slot-dir @/k1 -- @/llama-server --api-key secret,b", ["another shape"]),
    (1, "proxy --slot-dir @/k2 -- @/llama-server --api-key=secret", ["another shape"]),
    (1, "proxy --slot-dir @/k3 -- @/llama-server --api-key-file @/keys", ["another shape"]),
    (1, "proxy --slot-dir @/k4 --upstream-key-file @/key -- @/llama-server --api-key b", ["another shape"]),
    (1, "proxy --slot-dir @/k5 -- @/llama-server", ["Invalid API Key", "give its key with --upstream-key-file FILE"]),
    (
        2,
        "proxy --slot-dir @/k6 -- @/llama-server --api-key-file @/none",
        ["--api-key-file behind --: ", "No such file"],
    ),
    (
        2,
        "proxy --slot-dir @/k7 --upstream-key-file @/none -- @/llama-server",
        ["--upstream-key-file: ", "No such file"],
    ),
    (1, "proxy --slot-dir @/t -- /bin/true", ["llama-server ended before it served (exit code 0): start it alone"]),
    (2, "proxy --identity x -- llama-server", ["larder proxy: --identity is for --upstream"]),
    (2, "proxy -- llama-server --port 7", ["larder proxy: --port behind --: "]),
    (2, "proxy --slot-dir @/p1 -- no-llama-server", ["no-llama-server behind --: it, or a library that it needs, is"]),
    (2, "proxy --slot-dir @/p2 -- @/none", ["/none behind --: it, or a library that it needs, is not there"]),
    (2, "proxy --slot-dir @/p3 -- @", [" behind --: it cannot be executed"]),
    (2, "bench llama", ["larder bench llama: --model is missing"]),
    # Before the first model runs for hours.
    (
        2,
        "bench llama --llama-server /bin/false --model @/blob --model @/none",
        ["larder bench llama: --model: ", "@/none: No such file", "!/blob"],
    ),
    # "-1" is not the largest number there is.
    (2, "sim --seeds -1", ["--seeds: '-1' is not a whole number in [1, "]),
    (2, "sim --seeds 0", ["--seeds: '0' is not a whole number in [1, "]),
    (2, "sim --events 0", ["--events: '0' is not"]),
    (2, "sim --check-every 0", ["--check-every: '0' is not"]),
    (2, "sim --first 18446744073709551615", ["--first: '18446744073709551615' is not"]),
    (2, "metadata-server --max-namespaces -1", ["--max-namespaces: '-1' is not a whole number in [1, "]),
    (2, "metadata-server --max-pages -1", ["--max-pages: '-1' is not"]),
    (2, "conformance --backend memory --seed -1", ["--seed: '-1' is not"]),
    (2, "quickstart --seed -1", ["larder quickstart: --seed: '-1' is not"]),
    (2, "bench multiturn --seed -1", ["larder bench multiturn: --seed: '-1' is not"]),
    (2, "bench storage --exists-pages -1", ["larder bench storage: --exists-pages: '-1' is not"]),
    (2, "bench metadata --stored 512,-1", ["larder bench metadata: --stored: '-1' is not"]),
    (2, "bench metadata --http --keys 1,x", ["larder bench metadata --http: --keys: 'x' is not"]),
    (2, "store ls @ --pool kW", ["--pool: 'kW' is none of kv, mamba", "pool_32 ... pool_63"]),
    (3, "store ls @ --pool pool_35", ["@: no file store is there"]),
    (2, "store ls @ --limit -1", ["larder store ls: --limit: '-1' is not"]),
    (2, "store forget @ --volume x", ["--volume: 'x' is not"]),
    # Numbers out of their range.
    (2, "metadata-server --port 70000", ["--port: '70000' is not a whole number in [0, 65535]"]),
    (2, "metadata-server --stop-wait 3601", ["--stop-wait: '3601' is not a whole number in [0, 3600]"]),
    (2, "metadata-server --stop-delay -1", ["--stop-delay: '-1' is not a whole number in [0, 3600]"]),
    (2, "proxy --stop-wait x -- llama-server", ["larder proxy: --stop-wait: 'x' is not a whole number in [0, 3600]"]),
    (2, "serve --stop-wait 3601", ["larder serve: --stop-wait is 3601", "at most 3600"]),
    (2, "serve --stop-delay 3601", ["larder serve: --stop-delay is 3601", "at most 3600"]),
    (2, "metadata-server --io-threads 0", ["--io-threads: '0' is not a whole number in [1, 256]"]),
    (2, "metadata-server --client-reservation 0", ["--client-reservation is 0: it must be a number of seconds in ["]),
    (2, "metadata-server --client-lease 1000", ["--client-lease is 1000, which is more than --max-lease, 120: "]),
    (2, "metadata-server --max-lease 15", ["--client-lease is 60, which is more than --max-lease, 15: "]),
    (2, "metadata-server --max-reservation 15", ["--client-reservation is 60, ", "--max-reservation, 15: "]),
    (2, "metadata-server --max-lease nan", ["--max-lease is nan"]),
    (2, "conformance --backend memory --timeout 0", ["--timeout: '0' is not a whole number in [1, 3600]"]),
    (2, "stat --watch 0", ["--watch: '0' is not a number in [0.1, 86400]"]),
    (2, "stat --watch nan", ["--watch: 'nan' is not a number"]),
    (2, "quickstart --num-clients 0", ["--num-clients: '0' is not a whole number in [1, 10000]"]),
    (2, "quickstart --hicache-ratio 0", ["--hicache-ratio: '0' is not a number in ["]),
    (2, "serve --port 99999", ["--port is 99999: it must be at least 0 and at most 65535"]),
    (2, "serve --port -1", ["--port is '-1': it must be a whole number, at least 0 and at most 65535"]),
    (2, "serve --threads -1", ["--threads is '-1': it must be a whole number, at least 0 and at most "]),
    # The address is nobody's: the server ends there.
    (
        1,
        "serve --model gdn-tiny --context-length 10 --page-size 64 --host 203.0.113.1 --allow-no-key",
        ["nothing can be reused: a page has 64 tokens", "context of 10", "--page-size", "--context-length"],
    ),
    (2, "serve --hicache-ratio nan", ["--hicache-ratio is nan"]),
    (2, "bench multiturn --num-clients 0", ["--num-clients must be in [1, 10000]"]),
    (1, "bench multiturn --url http://127.0.0.1:1", ["cannot connect to 127.0.0.1:1"]),
    (2, "serve --page-size 0", ["--page-size is 0: a page has at least one token"]),
    # Words that are none of the known ones.
    (2, "serve --radix-eviction-policy x", ["--radix-eviction-policy is 'x'", "lru, lfu"]),
    (2, "bench multiturn --order x", ["--order: ", "fifo", "random"]),
    (2, "serve --log-level x", ["--log-level is 'x'", "warning"]),
    (2, "serve --log-format x", ["--log-format is 'x'", "json"]),
    (2, "serve --config @/loud.toml", ["loud.toml: --log-level is 'loud'", "!unknown option"]),
    (2, "serve --config @/open.toml --host 0.0.0.0 --allow-no-key=false", ["--host 0.0.0.0 is no loopback address"]),
    (
        2,
        "serve --config @/open.toml --enable-hierarchical-cache --hicache-storage-backend nope",
        ["unknown storage backend 'nope'", "!contradict"],
    ),
    (2, "serve --allow-no-key=perhaps", ["--allow-no-key"]),
    (2, "serve --config @/number.yaml", ["number.yaml: api-key: text in quotes is expected"]),
    (2, "serve --host nowhere", ["--host nowhere is no loopback address", "--allow-no-key", "!can be reached"]),
    (2, "metadata-server --log-level x", ["--log-level is 'x'"]),
    (2, "sim --model x", ["larder sim: ", "no preset 'x'", "gdn-tiny"]),
    (2, "sim --storage x", ["'storage=x' is not one of memory file hf3fs"]),
    (2, "conformance", ["--backend is missing", "memory, file"]),
    (2, "conformance --backend x", ["unknown storage backend 'x'", "memory"]),
    (2, "conformance --backend memory --filter zzz", ["no check has 'zzz' in its name; --list names them"]),
    (2, "conformance --backend memory --extra x", ["--extra: KEY=VALUE is expected, not 'x'"]),
    (2, "conformance --backend memory --extra x=1", ["'memory' has no option 'x'; its options:"]),
    (2, "bench storage --backend x", ["unknown storage backend 'x'", "memory"]),
    (2, "bench tree --sequences 0", ["larder bench tree: --sequences: '0' is not a whole number in [1, "]),
    (2, "bench transfer 500", ["MEBIBYTES: 500 is not from 16 to 128, which --device cpu takes"]),
    (2, "bench transfer --device cuda 127", ["MEBIBYTES: 127 is less than 128, the largest page", "--piece"]),
    (2, "bench transfer --device cuda 31 --piece 4", ["MEBIBYTES: 31 is less than 32, the largest page"]),
    (2, "bench transfer --device cuda 7 --piece 128 --no-gates", ["MEBIBYTES: 7 is less than 8, the largest page"]),
    (2, "bench transfer --device gpu", ["--device"]),
    (2, "serve --device gpu", ["--device gpu", "choose cpu, cuda or cuda:N"]),
    (2, "bench transfer x", ["larder bench transfer: MEBIBYTES: 'x' is not a whole number in [1, 16384]"]),
    (2, "serve --hicache-write-policy sometimes", ["--hicache-write-policy is 'sometimes': it must be one of"]),
    # What does not fit together.
    (2, "serve --disable-radix-cache --enable-hierarchical-cache", ["contradict each other"]),
    (2, "serve --model dsv4-tiny --page-size 63", ["page"]),
    (2, "metadata-server --host 0.0.0.0", ["give --api-key-file, or stay on 127.0.0.1"]),
    (2, "explain", ["give --text or --input-ids"]),
    (2, "explain --text a --input-ids 1", ["give --text or --input-ids"]),
    (2, "explain --text NOTHING --url http://127.0.0.1:1", ["/dev/null is empty: a prompt is expected"]),
    (2, "explain --input-ids [] --url http://127.0.0.1:1", ["--input-ids: an array of token ids is expected"]),
    (2, "explain --input-ids STDIN --url http://127.0.0.1:1", ["--input-ids: an array of token ids"]),
    (1, "bench multiturn --compare-outputs /dev/stdin --url http://127.0.0.1:1", ["cannot connect", "!JSON"]),
    (2, "bench multiturn --save-outputs @/none/x --url http://127.0.0.1:1", ["--save-outputs: open @/none/x: No such"]),
    (
        2,
        "bench multiturn --compare-outputs @/trace --save-outputs @/./trace",
        ["--save-outputs: '@/./trace' is the file '@/trace', too"],
    ),
    (2, "explain --text a --url ftp://x", ["'ftp://x': ftp is not supported"]),
    (2, "serve --hicache-storage-backend-extra-config {}", ["needs --hicache-storage-backend"]),
    # What is not there, or is something else.
    (2, "sim --scenario @/story.txt", ["@/story.txt: No such file"]),
    (2, "serve --config @/no.toml", ["--config: open @/no.toml: No such file"]),
    (2, "serve --model nope", ["--model: no preset 'nope'", "gdn-tiny"]),
    (2, "serve --model nope --served-model-name x.gguf", ["--model: no preset 'nope'"]),
    (2, "serve --model @/none", ["--model: ", "@/none: No such file"]),
    (2, "serve --model @/blob", ["--model: @/blob: ", "a GGUF file begins with GGUF; this one does not"]),
    (2, "serve --model @", ["--model: @: it is a directory"]),
    (None, "serve --model @/gguf_blob", ["larder serve: ", "!no preset"]),
    (None, "serve --model=@/gguf_blob", ["larder serve: ", "!no preset"]),
    (None, "serve -m @/gguf_blob", ["larder serve: ", "!unknown option"]),
    (None, "serve --model nope.gguf", ["larder serve: ", "!no preset"]),
    (2, "serve --max-total-tokens 10", ["--max-total-tokens is 10: it must hold at least one page"]),
    (2, "serve --hicache-storage-backend redis", ["unknown storage backend 'redis'"]),
    (2, "serve --hicache-storage-backend memory --hicache-storage-backend-extra-config {", ["extra-config: "]),
    (2, 'serve --hicache-storage-backend memory --hicache-storage-backend-extra-config {"max":1}', ["'max'"]),
    (2, "serve --tenant-limits @/limits.json", ["--tenant-limits: @/limits.json: there is no \"x\" here"]),
    (2, "serve --tenant-limits @/none.json", ["--tenant-limits: open @/none.json: No such file"]),
    (2, "serve --hicache-size 100000", ["asked for 95367431 MiB"]),
    (2, "serve --api-key-file @/none", ["--api-key-file: open @/none: No such file"]),
    (2, "serve --admin-api-key-file @/none", ["--admin-api-key-file: open @/none: No such file"]),
    # Keys that would let everybody in, or nobody.
    (2, "LARDER_API_KEY= serve", ["the variable LARDER_API_KEY is empty: unset it, or give it a key"]),
    (2, "LARDER_ADMIN_API_KEY= serve", ["the variable LARDER_ADMIN_API_KEY is empty: unset it"]),
    (2, "LARDER_METADATA_API_KEY= metadata-server", ["the variable LARDER_METADATA_API_KEY is empty: unset it"]),
    (2, "serve --api-key-file @/blank_key", ["--api-key-file: @/blank_key: the key begins or ends with a blank"]),
    (2, "metadata-server --api-key-file @/blank_key", ["--api-key-file: @/blank_key: the key begins or ends with"]),
    (2, "serve --api-key k\x01", ["larder serve: --api-key: the key has a control character"]),
    (2, "stat --api-key k\x01", ["larder stat: --api-key: the key has a control character"]),
    (2, "LARDER_ADMIN_API_KEY=k\x01 detach URL", ["larder detach: the variable LARDER_ADMIN_API_KEY: the key has a"]),
    # A client goes without a key, or with the next one that is named.
    (1, "LARDER_API_KEY= stat --url http://127.0.0.1:1", ["cannot connect to 127.0.0.1:1"]),
    (1, "LARDER_ADMIN_API_KEY= explain --text a --url http://127.0.0.1:1", ["cannot connect to 127.0.0.1:1"]),
    (1, "LARDER_ADMIN_API_KEY= detach http://127.0.0.1:1", ["cannot connect to 127.0.0.1:1"]),
    (2, "proxy --upstream http://127.0.0.1:1 --slot-dir @/s6 --upstream-key-file @/blank_key", ["ends with a blank"]),
    (2, "serve --hicache-storage-backend file", ["the option 'directory' is required"]),
    (2, "serve --hicache-storage-backend nope", ["unknown storage backend 'nope'"]),
    (2, "stat --url https://127.0.0.1:1 --cacert @/none", ["larder stat: ", "@/none"]),
    (2, "explain --text a --api-key-file @/none", ["larder explain: --api-key-file: ", "@/none: No such file"]),
    (2, "stat --api-key-file @/none", ["larder stat: --api-key-file: ", "@/none: No such file"]),
    (2, "attach --backend file --admin-api-key-file @/none URL", ["--admin-api-key-file: ", "@/none: No such file"]),
    (2, "detach --admin-api-key-file @/none URL", ["larder detach: --admin-api-key-file: ", "@/none: No such file"]),
    (2, "bench multiturn --api-key-file @/none", ["larder bench multiturn: --api-key-file: ", "@/none: No such file"]),
    # A server answers, and not as one that knows us. ASKS has a key; OTHER has none of our routes.
    (1, "stat --url ASKS", ["HTTP 401", "give the server's key with --api-key-file FILE"]),
    (1, "stat --url ASKS --api-key-file @/key", ["HTTP 404"]),
    (1, "explain --text a --url ASKS", ["HTTP 401", "give the server's key with --api-key-file FILE"]),
    (1, "explain --text a --url ASKS --api-key-file @/key", ["HTTP 404"]),
    (1, "attach --backend file ASKS", ["HTTP 401", "give the server's key with --admin-api-key-file FILE"]),
    (1, "detach ASKS --admin-api-key-file @/key", ["HTTP 404", "ASKS: as it was: ", "!larder detach: "]),
    (1, "bench multiturn --url ASKS", ["HTTP 401", "give the server's key with --api-key-file FILE"]),
    (1, "bench multiturn --url ASKS --api-key-file @/key", ["give --page-size"]),
    (1, "stat --url OTHER", ["HTTP 404", "no `larder serve`, `larder proxy` or page of metrics (metrics_port of "]),
    (1, "explain --text a --url OTHER", ["HTTP 404", "no `larder serve` or `larder proxy` answers there"]),
    (1, "detach OTHER", ["HTTP 404", "no `larder serve` or SGLang answers there"]),
    (2, "attach --backend file --extra-config x OTHER", ["larder attach: --extra-config: a JSON object", "!HTTP"]),
    (2, "attach --backend file --extra-config [] OTHER", ["larder attach: --extra-config: a JSON object", "!HTTP"]),
    (2, "bench multiturn --compare-outputs @/none", ["larder bench multiturn: ", "@/none: No such file"]),
    (2, "bench storage --directory /proc/none", ["larder bench storage: mkdir /proc/none: No such file"]),
    (2, "metadata-server --port 0 --directory @/blob/x", ["journal: mkdir @/blob/x: Not a directory"]),
    (2, "metadata-server --import @/state.json", ["@/state.json: No such file"]),
    (1, "stat --url http://127.0.0.1:1", ["cannot connect to 127.0.0.1:1", "!--url"]),
    (
        1,
        "detach http://127.0.0.1:1 OTHER",
        ["http://127.0.0.1:1: not reached, nothing was changed: cannot connect to 127.0.0.1:1", "Nothing was changed."],
    ),
    (3, "store ls @", ["@: no file store is there"]),
    (3, "store fsck @/no --repair", ["@/no: No such file"]),
    (2, "store export @/others/x @/others", ["@/others/x is in the store's own directory @/others,", "elsewhere"]),
    (2, "store export @/no/../others/./x.arc @/limits.json @/others/", ["is in the store's own directory @/others,"]),
    (3, "conformance --backend plugin --extra library=@/no.so", ["@/no.so: cannot open shared object file"]),
]

# As root, on the store of another user, OTHERS: what root writes there, that user's server could not open.
NOBODY = 65534
CASES_OF_ROOT = [
    (3, f"store {words}", [f"larder store {words.split()[0]}: OTHERS belongs to user ", "as that user: ", "nobody"])
    for words in ("fsck OTHERS --repair", "clear OTHERS", "forget OTHERS --volume 1", "import @/archive @/new OTHERS")
] + [
    # What only reads goes on, and finds that no store is there.
    (3, "store fsck OTHERS", ["OTHERS: no file store is there"]),
    (3, "store verify OTHERS", ["OTHERS: no file store is there"]),
    (3, "store export @/archive OTHERS", ["OTHERS: no file store is there"]),
]

# Their results go to a device that takes no byte.
CASES_OF_FULL_OUTPUT = [
    (1, "version", ["larder: cannot write standard output: No space left on device"]),
    (1, "help", ["larder: cannot write standard output: "]),
    (1, "stat --help", ["larder: cannot write standard output: "]),
    (1, "replay @/trace --json", ["larder: cannot write standard output: "]),
    # It prints piece by piece.
    (1, "conformance --backend memory --filter zero_length_anchor", ["larder: cannot write standard output: "]),
    (2, "bogus", ["larder: unknown command 'bogus'", "!cannot write"]),
]


# Answers as one that has loaded its model; everything else needs the key, and is of no version that is known.
LLAMA_SERVER = """#!/usr/bin/env python3
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_open = self.path == "/health" or self.headers.get("Authorization") == "Bearer secret"
        body = b"{}" if is_open else b'{"error": {"message": "Invalid API Key"}}'
        self.send_response(200 if is_open else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


class OtherServer(http.server.BaseHTTPRequestHandler):
    """As FastAPI answers where it has no such route; with `key`, after it has asked for that."""

    key = ""

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_open = not self.key or self.headers.get("Authorization") == f"Bearer {self.key}"
        body = b'{"detail":"Not Found"}' if is_open else b'{"error":"Unauthorized"}'
        self.send_response(404 if is_open else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *arguments):
        pass


class AsksForKey(OtherServer):
    key = "secret"


def start_server(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def put_files(directory):
    line = '{"timestamp": 0, "input_length": 64, "output_length": 1, "hash_ids": [1]}\n'
    for name, text in [
        ("blob", "no GGUF"),
        ("gguf_blob", "GGUF and nothing more"),
        ("key", "secret\n"),
        ("blank_key", "secret \n"),
        ("loud.toml", 'log-level = "loud"\n'),
        ("number.yaml", "api-key: 0071\n"),
        ("open.toml", "allow-no-key = true\ndisable-hierarchical-cache = true\n"),
        ("keys", "\nsecret\nb\n"),
        ("limits.json", '{"x": 1}'),
        ("llama-server", LLAMA_SERVER),
        ("trace", line),
    ]:
        path = pathlib.Path(directory, name)
        path.write_text(text)
        path.chmod(0o700)
    others = pathlib.Path(directory, "others")
    others.mkdir()
    if os.geteuid() == 0:
        os.chown(others, NOBODY, NOBODY)


def problems_of(binary, places, case, has_output=True):
    code, line, words = case

    def placed(text):
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    arguments = placed(line).split()
    environment = dict(os.environ)
    if "=" in arguments[0]:
        name, environment[name] = arguments.pop(0).split("=", 1)
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([binary, *arguments], input='{"x": 1}', stderr=subprocess.PIPE, text=True,
                              stdout=subprocess.PIPE if has_output else full, timeout=60, env=environment)
    problems = []
    if code is not None and done.returncode != code:
        problems.append(f"the exit code is {done.returncode}, and must be {code}")
    if done.stdout:
        problems.append(f"standard output has {done.stdout[:200]!r}")
    for word in words:
        is_wanted = not word.startswith("!")
        if (placed(word.removeprefix("!")) in done.stderr) != is_wanted:
            problems.append(f"it does {'not ' if is_wanted else ''}say {word!r}")
    shown = done.stderr[:500].rstrip()
    return [f"larder {line}\n  {problem}\n  it said: {shown}" for problem in problems]


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(4) as pool:
        put_files(directory)
        places = {
            "OTHERS": f"{directory}/others",
            "@": directory,
            "ASKS": start_server(AsksForKey),
            "OTHER": start_server(OtherServer),
            "STDIN": "@/dev/stdin",
            "NOTHING": "@/dev/null",
        }
        cases = CASES + (CASES_OF_ROOT if os.geteuid() == 0 else [])
        runs = [(case, True) for case in cases] + [(case, False) for case in CASES_OF_FULL_OUTPUT]
        found = [p for case in pool.map(lambda run: problems_of(binary, places, *run), runs) for p in case]
    for problem in found:
        print(problem)
    print(f"{len(runs)} command lines, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
