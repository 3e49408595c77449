#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages of a build: what is in them, and what systemd says of the units.

    debian.py --build BUILD --version VERSION

Makes the packages with cpack in BUILD/debian_test, unpacks them with dpkg-deb, and looks at the files, the control
data, the hardening of the executable, and the scripts. Nothing is installed. The folder stays after a failure.
Ends with 77 where there is no dpkg-shlibdeps.
"""

import argparse
import gzip
import os
import pathlib
import re
import shutil
import sys

from steps import need, run

UNITS = ("larder-metadata-server", "larder-proxy", "larder-serve")
COMMAND_FILES = (
    "usr/bin/larder", "usr/share/man/man1/larder.1.gz", "usr/share/bash-completion/completions/larder",
    "usr/lib/sysusers.d/larder.conf", "etc/larder/metadata-server.env", "etc/larder/proxy.env", "etc/larder/serve.env",
    "usr/share/larder/prometheus/larder_rules.yml", "usr/share/larder/grafana/larder.json",
    "usr/share/doc/larder/LICENSE", "usr/share/doc/larder/README.md", "usr/share/doc/larder/copyright",
    "usr/share/doc/larder/CHANGELOG.md", "usr/share/doc/larder/CONTRIBUTING.md", "usr/share/doc/larder/SECURITY.md",
    "usr/share/doc/larder/examples/plugin_backend/README.md",
    "usr/share/doc/larder/docs/results/cuda_2026-11-26.md",
    *(f"usr/lib/systemd/system/{unit}.service" for unit in UNITS))
DEVELOPMENT_FILES = ("usr/include/larder/larder.h", "usr/include/larder/larder_backend.h",
                     "usr/share/doc/liblarder-dev/copyright")
# How exposed a unit may be at most, of 100 (systemd-analyze security --threshold).
EXPOSURE = {"larder-metadata-server": 15, "larder-proxy": 40, "larder-serve": 40}


def make_packages(build, work):
    """{name of a package: folder with its files and DEBIAN/}."""
    run("cpack", "--config", build / "CPackConfig.cmake", "-G", "DEB", "-B", work,
        "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip")
    folders = {}
    for package in work.glob("*.deb"):
        name = package.name.split("_")[0]
        folders[name] = work / name
        run("dpkg-deb", "--raw-extract", package, folders[name])
    need(set(folders) == {"larder", "liblarder-dev"}, f"packages: {sorted(folders)}")
    return folders


def control_of(folder):
    lines = (folder / "DEBIAN/control").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line and line[0] != " ")


def check_links(folder):
    """Relative links of the installed pages lead to what is installed."""
    lost, count = [], 0
    for page in folder.rglob("*.md"):
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                count += 1
                if not (page.parent / target).exists():
                    lost.append(f"{page.relative_to(folder)}: {target}")
    need(count > 100 and not lost, f"of {count} links of installed pages {len(lost)} lead nowhere: {lost}")


def check_files(folders):
    files = {name: [path for path in folder.rglob("*") if not path.is_dir() and "DEBIAN" not in path.parts]
             for name, folder in folders.items()}
    names = {name: {str(path.relative_to(folders[name])) for path in paths} for name, paths in files.items()}
    for name, wanted in (("larder", COMMAND_FILES), ("liblarder-dev", DEVELOPMENT_FILES)):
        missing = [path for path in wanted if path not in names[name]]
        need(not missing, f"{name} lacks {missing}; it has {sorted(names[name])[:40]}")
    need(not names["larder"] & names["liblarder-dev"], "a file is in both packages")
    check_links(folders["larder"] / "usr/share/doc/larder")
    libraries = re.compile(r"usr/lib/(?:\S+/)?liblarder\.so(\.[0-9.]+)?$")
    need(all(libraries.match(path).group(1) for path in names["larder"] if libraries.match(path)) and
         any(libraries.match(path) for path in names["larder"]), "larder has the libraries with a version")
    need(any(path.endswith("/liblarder.so") for path in names["liblarder-dev"]), "liblarder-dev has liblarder.so")
    need(any(path.endswith("/liblarder_core.a") for path in names["liblarder-dev"]), "and liblarder_core.a")
    for path in files["larder"] + files["liblarder-dev"]:
        mode = path.lstat().st_mode & 0o777
        need(path.is_symlink() or not mode & 0o022, f"{path} may be written by others")
    for path in (folders["larder"] / "etc/larder").iterdir():
        need(path.stat().st_mode & 0o777 == 0o640, f"{path}: a key may stand in it")
    print("ok   files: larder", len(names["larder"]), "liblarder-dev", len(names["liblarder-dev"]))


def check_control(folders, version):
    control = control_of(folders["larder"])
    need(control["Version"] == version, f"Version: {control['Version']}")
    depends = re.findall(r"[a-z][a-z0-9.+-]+(?= \(|,|$)", control["Depends"])
    for package in ("libc6", "libssl3", "libxxhash0", "libyaml-cpp0.7", "libstdc++6"):
        need(package in depends, f"dpkg-shlibdeps found no {package}: {control['Depends']}")
    need(f"larder (= {version})" in control_of(folders["liblarder-dev"])["Depends"], "liblarder-dev names no larder")
    listed = (folders["larder"] / "DEBIAN/conffiles").read_text().split()
    there = {f"/etc/larder/{path.name}" for path in (folders["larder"] / "etc/larder").iterdir()}
    need(set(listed) == there, f"conffiles are {listed}, and the files {there}")
    for script in ("postinst", "prerm", "postrm"):
        path = folders["larder"] / "DEBIAN" / script
        need(os.access(path, os.X_OK), f"{script} is not executable")
        run("sh", "-n", path)
    print("ok   control:", control["Depends"])


def check_command(folder, version):
    larder = folder / "usr/bin/larder"
    need(run(larder, "--version").strip() == f"larder {version}", "larder --version")
    for binary in (larder, next((folder / "usr/lib").rglob(f"liblarder.so.{version}"))):
        headers = run("readelf", "-W", "--file-header", "--program-headers", "--dynamic", "--dyn-syms", binary)
        for word in (" DYN ", "GNU_RELRO", "BIND_NOW", "__stack_chk_fail", "_chk@"):
            need(word in headers, f"{binary.name} is not hardened: no {word}")
        need(not re.search(r"GNU_STACK .* RWE", headers), f"{binary.name}: its stack can be executed")
        need("RPATH" not in headers and "RUNPATH" not in headers, f"{binary.name} has a path of this machine")
    page = gzip.decompress((folder / "usr/share/man/man1/larder.1.gz").read_bytes()).decode()
    need(f"larder {version}" in page and ".B larder metadata\\-server" in page, "the manual page")
    completion = folder / "usr/share/bash-completion/completions/larder"
    complete = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _larder; echo "${COMPREPLY[*]}"'
    for words, expected in (("pro", "proxy"), ("store ver", "verify"), ("proxy --store-", "--store-size")):
        said = run("bash", "-c", complete, completion, "larder", *words.split()).strip()
        need(said == expected, f"completion of '{words}': {said}")
    print("ok   larder --version, hardening, manual page, completion")


def check_units(folder, work):
    if shutil.which("systemd-analyze") is None:
        print("LEFT OUT: systemd-analyze is not installed")
        need("LARDER_TEST_ALL_SERVERS" not in os.environ, "./test.sh has installed systemd, which has it")
        return
    there = work / "units"  # the same, with the command where it lies unpacked
    there.mkdir()
    for unit in UNITS:
        text = (folder / f"usr/lib/systemd/system/{unit}.service").read_text()
        words = re.search(r"^ExecStart=/usr/bin/larder (\S+)", text, re.MULTILINE).group(1)
        need(f"larder-{words}" == unit, f"{unit} starts larder {words}")
        # Systemd gives up after five starts in 10 s, which are five in half a second if nothing is said.
        need(re.search(r"^RestartSec=[3-9]$", text, re.MULTILINE), f"{unit}: RestartSec")
        (there / f"{unit}.service").write_text(text.replace("/usr/bin/larder", str(folder / "usr/bin/larder")))
    said = run("systemd-analyze", "verify", "--man=no", *(there / f"{unit}.service" for unit in UNITS))
    need(said.strip() == "", "systemd-analyze verify said:\n" + said)
    for unit, most in EXPOSURE.items():
        run("systemd-analyze", "security", "--offline=yes", f"--threshold={most}", there / f"{unit}.service")
    print("ok   units: systemd-analyze verify, security")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    arguments = parser.parse_args()
    if shutil.which("dpkg-shlibdeps") is None or shutil.which("file") is None:
        print("LEFT OUT: dpkg-dev or file is not installed (tools/install_deps.sh --package)")
        sys.exit(77)
    build = arguments.build.resolve()
    work = build / "debian_test"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    folders = make_packages(build, work)
    check_files(folders)
    check_control(folders, arguments.version)
    check_command(folders["larder"], arguments.version)
    check_units(folders["larder"], work)
    shutil.rmtree(work)  # after a failure it stays


main()
