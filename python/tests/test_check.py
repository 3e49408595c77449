# SPDX-License-Identifier: Apache-2.0
"""`python -m larder.sglang check`."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import larder
from larder.sglang import check

SGLANG = {"backend_name": "larder", "module_path": "larder_sglang", "class_name": "LarderStorage", "interface_v1": 1,
          "hicache_storage_pass_prefix_keys": True, "prefetch_threshold": 256}  # fmt: skip


def config(folder, **extra):
    store = {"directory": f"{folder}/store", "max_size": "64Mi", "staging_bytes": "8Mi"}
    return {key: value for key, value in {**SGLANG, **store, **extra}.items() if value is not None}


def fill(folder, most_bytes, max_size="64Mi"):
    """Pages of 64 KiB, until the store has most_bytes or would evict. Their number."""
    options = {"directory": f"{folder}/store", "max_size": max_size, "staging_bytes": "8Mi", "evict": "off"}
    pool = larder.Pool("kv", page_bytes=64 << 10, layout="random bytes")
    keys = larder.page_keys(list(range(most_bytes >> 16)), 1)
    with larder.Store("file", options) as store, store.space(page_size=1, identity="model", pools=[pool]) as space:
        for i in range(0, len(keys), 8):
            pages = [larder.Page(key, bytearray(os.urandom(64 << 10))) for key in keys[i : i + 8]]
            if larder.Code.UNSUPPORTED in space.put_pages(pages, timeout=60):
                break
    return pages_in(folder)


def pages_in(folder):
    options = {"directory": f"{folder}/store", "max_size": "unlimited", "staging_bytes": "8Mi", "evict": "off"}
    with larder.Store("file", options) as store:
        return store.stats()["store"]["pages"]


def run(extra, *words):
    return check.main(["check", extra if isinstance(extra, str) else json.dumps(extra), *words])


def test_a_store_that_works(tmp_path, capsys):
    assert run(config(tmp_path, admission="second_offer", metrics_port=9300)) == 0
    out = capsys.readouterr().out
    assert re.search(r"directory: +\S+/store: [\d,]+ bytes free\n", out)
    assert "equal\n" in out and out.endswith("it works\n") and "warning" not in out
    assert "share directory: none" in out and "http://127.0.0.1:9300/metrics" in out
    with larder.Store("file", {"directory": f"{tmp_path}/store", "max_size": "64Mi", "staging_bytes": "8Mi"}) as store:
        assert store.stats()["store"]["pages"] == 0  # its pages are gone


def test_it_needs_no_sglang(tmp_path):
    code = "import runpy, sys; sys.modules['sglang'] = None; runpy.run_module('larder.sglang', run_name='__main__')"
    path = tmp_path / "larder.json"
    path.write_text(json.dumps(config(tmp_path)))
    words = [sys.executable, "-c", code, "check", f"@{path}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "it works" in done.stdout, done


def test_several_ranks_share_as_those_of_the_server(tmp_path, capsys):
    assert run(config(tmp_path), "--tp-size", "2") == 0
    assert f"share directory: {tmp_path}/store.share\n" in capsys.readouterr().out
    assert run(config(tmp_path, tp_lcm_size=3), "--tp-size", "2") == 1
    assert "tp_lcm_size is 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "extra, wanted",
    [
        ({"max_sise": "1G"}, "no key 'max_sise'; did you mean 'max_size'?"),
        ({"module_path": None}, "no 'module_path': \"larder_sglang\""),
        ({"class_name": "Larder"}, "class_name is 'Larder'"),
        ({"prefetch_threshold": "256"}, "prefetch_threshold is '256'"),
        ({"directory": "/proc/nothing/here"}, "/proc/nothing"),
        ({"evict": "never"}, "option 'evict': 'never'"),
    ],
)
def test_what_does_not_work(tmp_path, capsys, extra, wanted):
    assert run(config(tmp_path, **extra)) == 1
    assert wanted in capsys.readouterr().err


@pytest.mark.parametrize("held, max_size", [(40 << 20, "10Mi"), (40 << 20, "2Mi"), (80 << 20, "64Mi")])
def test_nothing_is_evicted(tmp_path, capsys, held, max_size):
    filled = fill(tmp_path, held)
    assert filled > 500
    assert run(config(tmp_path, max_size=max_size)) == 0
    out = capsys.readouterr().out
    assert pages_in(tmp_path) == filled
    assert out.endswith("it works\n")
    if max_size != "64Mi":
        assert "not written" in out and "it is full, and this check evicts nothing" in out
        assert re.search(r"holds more than max_size: as SGLang opens it, it evicts [\d,]+ bytes or more", out)


def test_a_full_store_that_evicts_nothing(tmp_path, capsys):
    filled = fill(tmp_path, 40 << 20)
    assert run(config(tmp_path, max_size="10Mi", evict="off")) == 0
    out = capsys.readouterr().out
    assert "it is full, and evict is off" in out and "it takes nothing new" in out
    assert pages_in(tmp_path) == filled


def test_a_days_writes_that_are_used_up(tmp_path, capsys):
    assert run(config(tmp_path, max_writes_per_day="1")) == 0
    assert "max_writes_per_day of today is used up" in capsys.readouterr().out


def test_a_store_that_opens_late_is_waited_for(tmp_path):
    (tmp_path / "store").mkdir()
    os.mkfifo(tmp_path / "store" / "FORMAT")  # whoever opens it to read waits for a writer
    code = (
        "import sys; from larder.sglang import check, opening\n"
        "opening._TELL_SECONDS = 0.01; sys.exit(check.main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "check", json.dumps(config(tmp_path))]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as waits:
        line = waits.stderr.readline()
        waits.send_signal(signal.SIGINT)
        rest = waits.communicate(timeout=120)[1]
    assert f"the file store {tmp_path}/store has not opened in 0.01 s, and this check waits for it (Ctrl-C" in line
    assert waits.returncode == 130 and rest == "interrupted\n"


def test_a_relative_directory(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(config(tmp_path, directory="a/store")) == 0
    out = capsys.readouterr().out
    assert f"directory 'a/store' is {tmp_path}/a/store here; SGLang takes it relative to" in out
    assert f"directory:       {tmp_path}/a/store: " in out


def test_a_store_that_another_process_has(tmp_path, capsys):
    with larder.Store("file", {"directory": f"{tmp_path}/store", "max_size": "64Mi", "staging_bytes": "8Mi"}):
        assert run(config(tmp_path)) == 1
    assert "CONFLICT" in (err := capsys.readouterr().err) and "check before its start" in err


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("extra, words", [
    ({}, []),
    ({"rank_directories": True}, ["--tp-size", "2"]),
    ({"directory": "{}/other", "share_directory": "{}/home/share"}, []),
])  # fmt: skip
def test_root_does_not_write_into_the_store_of_another(tmp_path, capsys, extra, words, is_there):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    home = tmp_path / "home"
    for folder in (home, home / "store", home / "share") if is_there else (home,):
        folder.mkdir()
        os.chown(folder, 65534, -1)
    there = sorted(tmp_path.rglob("*"))
    extra = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in extra.items()}
    assert run(config(home, **extra), *words) == 1
    assert "check it as that user" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == there


def test_pages_that_come_back_with_other_bytes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(larder.Space, "get_pages", lambda self, pages, timeout: [larder.Code.OK] * len(pages))
    assert run(config(tmp_path)) == 1
    assert "other bytes" in capsys.readouterr().err


def test_weights(tmp_path, capsys):
    assert run(config(tmp_path), "--model-path", str(tmp_path)) == 1
    assert "no files with weights" in (err := capsys.readouterr().err) and "Set weights_fingerprint" in err
    (tmp_path / "model.bin").write_bytes(b"weights")
    assert run(config(tmp_path), "--model-path", str(tmp_path)) == 0
    assert re.search(r"weights: +[0-9a-f]{64}, made in \d", capsys.readouterr().out)
    assert run(config(tmp_path, weights_fingerprint="mine"), "--model-path", "/nothing") == 0
    assert "'mine'" in capsys.readouterr().out


@pytest.mark.parametrize("extra", ["{", "[]", "@/nothing/here.json", "@/nothing/here.ini", "@/proc"])
def test_wrong_arguments(extra, capsys):
    with pytest.raises(SystemExit) as ended:
        run(extra)
    assert ended.value.code == 2 and "error: " in capsys.readouterr().err


def test_help(capsys):
    for words in (["--help"], ["check", "--help"]):
        with pytest.raises(SystemExit) as ended:
            check.main(words)
        assert ended.value.code == 0 and "check" in capsys.readouterr().out
