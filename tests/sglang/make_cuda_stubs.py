# SPDX-License-Identifier: Apache-2.0
"""Makes empty stand-ins for the CUDA libraries that the PyPI build of torch links.

Usage: make_cuda_stubs.py SITE_PACKAGES

The libraries named by torch's own shared objects and found nowhere are compiled from nothing but the names
and versions of the symbols that torch wants, so that `import torch` works on a machine without CUDA and
without 2.4 GB of downloads.  None of their functions does anything useful: each returns 0.  torch reports
`torch.cuda.is_available() == False` and computes on the CPU.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

CUDA_LIBRARY = re.compile(r"^lib(cu|nccl|nv)")
STUB_FOLDER = "nvidia/cu13/lib"  # is on the search path that is built into torch's libraries


def read_elf(path, *options):
    """Returns what readelf prints about `path`."""
    return subprocess.run(["readelf", "-W", *options, str(path)], capture_output=True, text=True, check=True).stdout


def wanted_libraries(path):
    """Returns the names of the CUDA libraries that the shared object `path` is linked with."""
    names = re.findall(r"\(NEEDED\).*\[(.*)\]", read_elf(path, "-d"))
    return {name for name in names if CUDA_LIBRARY.match(name)}


def library_of_version(path):
    """Returns a map from symbol version to the library that `path` expects it in."""
    result = {}
    library = None
    for line in read_elf(path, "-V").splitlines():
        file = re.search(r"File: (\S+)", line)
        if file:
            library = file.group(1)
        name = re.search(r"Name: (\S+)\s+Flags:", line)
        if name and library:
            result[name.group(1)] = library
    return result


def symbols(path):
    """Yields (name, version or None, is_defined) for every dynamic symbol of `path`."""
    for line in read_elf(path, "--dyn-syms").splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        name, _, version = fields[7].replace("@@", "@").partition("@")
        yield name, version or None, fields[6] != "UND"


def collect(objects):
    """Returns {library: {version or None: set of symbols}} for the CUDA libraries that `objects` want."""
    libraries = set().union(*(wanted_libraries(path) for path in objects))
    wanted = {library: collections.defaultdict(set) for library in sorted(libraries)}
    unversioned = set()
    defined = set()
    for path in objects:
        owner = library_of_version(path)
        for name, version, is_defined in symbols(path):
            if is_defined:
                defined.add(name)
            elif version is None:
                unversioned.add(name)
            elif owner.get(version) in wanted:
                wanted[owner[version]][version].add(name)
    # Which library an unversioned symbol belongs to is written nowhere and does not matter to the linker.
    plain = re.compile(r"^(cu|nccl|nv)[a-zA-Z0-9_]+$")
    first = "libnccl.so.2" if "libnccl.so.2" in wanted else next(iter(wanted))
    wanted[first][None] |= {name for name in unversioned - defined if plain.match(name)}
    return wanted


def compile_stub(library, versions, folder):
    """Compiles the empty `library` with the given symbols into `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "stub.c")
        script = pathlib.Path(scratch, "stub.map")
        names = sorted(set().union(*versions.values()) if versions else ())
        source.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in names))
        blocks = []
        for version, members in sorted(versions.items(), key=lambda item: item[0] or ""):
            if version is not None:
                blocks.append(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(members))} }};\n")
        script.write_text("".join(blocks))
        command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", f"-Wl,-soname,{library}"]
        if blocks:
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", str(folder / library), str(source)], check=True)


def main(site_packages):
    """Writes the stand-ins below `site_packages` for every wanted library that is not there; prints their number."""
    site = pathlib.Path(site_packages)
    objects = sorted([*site.glob("torch/lib/*.so*"), *site.glob("torch/*.so")])
    if not objects:
        raise SystemExit(f"make_cuda_stubs: no torch below {site}")
    folder = site / STUB_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    made = 0
    for library, versions in collect(objects).items():
        # libcuda comes with a driver: torch looks for it when it is asked for CUDA, and must not find a false one.
        if library.startswith("libcuda.so") or (folder / library).exists():
            continue
        compile_stub(library, versions, folder)
        made += 1
    print(f"make_cuda_stubs: {made} libraries")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
