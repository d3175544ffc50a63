#!/usr/bin/env python3
"""Lays our own engine bundles out as an operator would find them, and writes their trust rows.

Usage: bundle.py PROFILE_DIR, after cargo built into that folder. Each bundle lands in PROFILE_DIR/bundles/ID with
its plugin.toml and its library or program; PROFILE_DIR/bundles/trust.toml promotes the abort-safe ones to run in-process.
"""

import filecmp
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUNDLES = ("owned", "ort", "llama-cpp", "reference")
PROMOTED = ("owned", "ort")
# Private native libraries of a bundle, from the cache that scripts/setup.py fills.
PRIVATE = {"ort": "native/onnxruntime-1.32.0/libonnxruntime.so.1.32.0"}
OWN = ("catalog", "model")
# Bundles whose engine is a program, with the program that makes their model.
PROGRAMS = {"python-example": "make_model.py"}
SUFFIX = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")


def main() -> None:
    """Copies each bundle in place, changing a file only when its content changed."""
    built = pathlib.Path(sys.argv[1])
    bundles = built / "bundles"
    bundles.mkdir(parents=True, exist_ok=True)
    # The trust file is believed only where nobody else can put another in its place.
    bundles.chmod(0o755)
    for name in BUNDLES:
        folder = bundles / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        library = f"libsynapse_{name.replace('-', '_')}.{SUFFIX}"
        sources = [ROOT / "plugins" / name / "plugin.toml", built / library]
        if name in PRIVATE:
            sources.append(ROOT / ".synapse" / "cache" / PRIVATE[name])
        placed = [(source, folder / source.name) for source in sources]
        # A bundle's own records, their references, and the files of its models.
        for part in OWN:
            tree = ROOT / "plugins" / name / part
            placed += [(file, folder / part / file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()]
        for source, target in placed:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or not filecmp.cmp(source, target, shallow=False):
                shutil.copyfile(source, target)
            target.chmod(0o644)
    for name, maker in PROGRAMS.items():
        lay_out_program(ROOT / "plugins" / name, bundles / name, maker)
    for name in PROMOTED:
        trust = [built / "synapse", "plugin", "trust", name, "--plugin-dir", bundles]
        subprocess.run([*trust, "--trust-file", bundles / "trust.toml"], check=True, stdout=subprocess.DEVNULL)


def lay_out_program(source: pathlib.Path, folder: pathlib.Path, maker: str) -> None:
    """Copies a program with everything beside it, and lets it make its model, changing a file only when it differs."""
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    for path in files:
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or not filecmp.cmp(path, target, shallow=False):
            shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, source / maker, scratch], check=True)
        (folder / "model").mkdir(exist_ok=True)
        for path in pathlib.Path(scratch).iterdir():
            target = folder / "model" / path.name
            if not target.exists() or not filecmp.cmp(path, target, shallow=False):
                shutil.copyfile(path, target)
    for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        place.chmod(0o755)


if __name__ == "__main__":
    main()
