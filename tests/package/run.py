#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Larder as others use it: installed, and as a part of another project.

    run.py --build BUILD [--source SOURCE]

1. Configures a project that has Larder in it by add_subdirectory(), and looks at what its own targets are compiled
   with.
2. Installs the library and the core of BUILD into a prefix, moves that, and compiles and runs programs against it: with
   find_package() in CMake and with pkg-config.
3. Installs the component "service" twice: options of services that were edited in between are kept.
Everything lies in BUILD/package_test, and stays there after a failure. Needs liblarder.so and liblarder_core.a built.
"""

import argparse
import json
import os
import pathlib
import re
import shutil

from steps import need, run

HERE = pathlib.Path(__file__).resolve().parent


def install(build, work):
    """A prefix that is not where it was installed to: nothing in it may name that place."""
    for component in ("runtime", "library", "core"):
        run("cmake", "--install", build, "--prefix", work / "installed", "--component", component)
    prefix = work / "prefix"
    (work / "installed").rename(prefix)
    for path in prefix.rglob("*"):
        if path.suffix in (".cmake", ".pc", ".h"):
            text = path.read_text()
            for place in (work, build):
                need(str(place) not in text, f"{path} names {place}")
    return prefix


def run_programs(folder, work, environment=None):
    """c_store, c_connector and c_event_loop, twice: the second time everything is there from the start."""
    store = work / "store"
    shutil.rmtree(store, ignore_errors=True)
    for first in (0, 4):
        text = run(folder / "c_store", store, env=environment)
        need(f"opening 1: the store can resume after {first} of 4 pages" in text, "c_store said:\n" + text)
        need("opening 2: the store can resume after 4 of 4 pages" in text, "c_store said:\n" + text)
        need(text.count("the same bytes") == 2, "c_store said:\n" + text)
    shutil.rmtree(store)
    for first in (0, 8):
        text = run(folder / "c_connector", store, env=environment)
        need(f"turn 1 of conversation 0: {first:2} of  8 pages reused" in text, "c_connector said:\n" + text)
        need("turn 2 of conversation 0: " in text and "turn 3 of conversation 2: " in text,
             "c_connector said:\n" + text)
    shutil.rmtree(store)
    for first in (0, 16):
        text = run(folder / "c_event_loop", store, env=environment)
        need(f"round 1, request 0: {first:2} of 16 pages reused" in text, "c_event_loop said:\n" + text)
        need(text.count("request 3: ") == 2, "c_event_loop said:\n" + text)


def check_find_package(prefix, source, work):
    folder = work / "consumer"
    run("cmake", "-G", "Ninja", "-S", HERE / "consumer", "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF", f"-DLARDER_EXAMPLES={source}/examples")
    run("cmake", "--build", folder)
    line = run("ninja", "-C", folder, "-t", "commands", "embed_cache").splitlines()[-1]
    need("-lxxhash" in line and "libown_" not in line, "the core is linked with a target of this project: " + line)
    run(folder / "headers_in_cxx")
    run_programs(folder, work)
    text = run(folder / "embed_cache")
    need("0 of 256 tokens reused" in text and "192 of 256 tokens reused" in text, "embed_cache said:\n" + text)
    shutil.rmtree(work / "hybrid", ignore_errors=True)
    text = run(folder / "hybrid_engine", work / "hybrid")
    need(text.count(" 0 wrong numbers") == 2, "hybrid_engine said:\n" + text)
    print("ok   find_package: larder::larder from C11 and C++11, larder::core from C++20")


def check_pkg_config(prefix, source, work):
    if shutil.which("pkg-config") is None:
        print("LEFT OUT: pkg-config is not installed")
        return
    found = list(prefix.rglob("larder.pc"))
    need(len(found) == 1, f"one larder.pc is expected, not {found}")
    environment = dict(os.environ, PKG_CONFIG_PATH=str(found[0].parent))
    flags = run("pkg-config", "--cflags", "--libs", "larder", env=environment).split()
    folder = work / "pkg_config"
    folder.mkdir()
    for program in ("c_store", "c_connector", "c_event_loop"):
        run("cc", "-std=c11", "-pedantic", "-Wall", "-Werror", source / f"examples/{program}.c", *flags, "-o",
            folder / program)
    library = run("pkg-config", "--variable=libdir", "larder", env=environment).strip()
    run_programs(folder, work, dict(os.environ, LD_LIBRARY_PATH=library))
    print("ok   pkg-config: c_store.c, c_connector.c, c_event_loop.c")


def check_parent(source, work):
    folder = work / "parent"
    run("cmake", "-G", "Ninja", "-S", HERE / "parent", "-B", folder, "-DCMAKE_BUILD_TYPE=MinSizeRel",
        f"-DLARDER_SOURCE={source}")
    commands = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        if entry["file"].endswith("parent/main.cc"):
            commands["with_core" if "with_core.dir" in entry["command"] else "alone"] = entry["command"].split()
    own = ["-Os", "-DPARENT_OWN", "-std=gnu++14", "-o"]
    need(commands["alone"][1:5] == own, "flags of a target of its own: " + " ".join(commands["alone"]))
    with_core = commands["with_core"]
    others = [word for word in with_core[1:with_core.index("-o")] if word not in ("-Os", "-DPARENT_OWN")]
    need(others == [f"-I{source}/src", "-std=gnu++20"], "flags of one that links larder::core: " + " ".join(with_core))
    print("ok   add_subdirectory: nothing of the project around it is changed")


def install_service(build, root):
    """What was said. With DESTDIR, as whoever makes a package does it."""
    return run("cmake", "--install", build, "--prefix", "/usr", "--component", "service",
               env=dict(os.environ, DESTDIR=str(root)))


def check_edited_options(build, work):
    if "LARDER_BUILD_TOOLS:BOOL=OFF" in (build / "CMakeCache.txt").read_text():
        print("LEFT OUT: a build without the command has no services")
        return
    root = work / "service"
    folder = root / "etc/larder"
    manifest = build / "install_manifest_service.txt"
    names = ["metadata-server.env", "proxy.env", "serve.env"]
    install_service(build, root)
    shipped = {name: (folder / name).read_text() for name in names}
    need(all((folder / name).stat().st_mode & 0o777 == 0o640 for name in names), "a key may stand in them")
    (folder / "proxy.env").write_text("LARDER_API_KEY=mine\n")
    (folder / "serve.env").unlink()
    (folder / "serve.env").symlink_to("elsewhere.env")  # which is not there at the moment
    (folder / "metadata-server.env").chmod(0o600)
    said = install_service(build, root)
    need((folder / "proxy.env").read_text() == "LARDER_API_KEY=mine\n", "proxy.env was overwritten:\n" + said)
    need(os.readlink(folder / "serve.env") == "elsewhere.env", "serve.env was overwritten:\n" + said)
    for name in ("proxy.env", "serve.env"):
        new = folder / f"{name}.new"
        need(new.read_text() == shipped[name] and new.stat().st_mode & 0o777 == 0o640, f"{new.name} is the new one")
        need(re.search(rf"Kept: \S*/etc/larder/{name}; .* {new.name} ", said), f"nothing is said of {name}:\n" + said)
        need(f"/etc/larder/{name}\n" not in manifest.read_text() + "\n", f"uninstalling would take {name} along")
    need((folder / "metadata-server.env").stat().st_mode & 0o777 == 0o600, "what is up to date is left alone")
    there = sorted(path.name for path in folder.iterdir())
    need(there == sorted([*names, "proxy.env.new", "serve.env.new"]), f"/etc/larder has {there}")
    print("ok   component service: edited options are kept")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, default=HERE.parent.parent)
    arguments = parser.parse_args()
    build, source = arguments.build.resolve(), arguments.source.resolve()
    work = build / "package_test"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    check_parent(source, work)
    check_edited_options(build, work)
    prefix = install(build, work)
    check_find_package(prefix, source, work)
    check_pkg_config(prefix, source, work)
    shutil.rmtree(work)  # after a failure it stays


main()
