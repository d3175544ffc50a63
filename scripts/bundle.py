#!/usr/bin/env python3
"""Lays our own engine bundles out as an operator would find them, and writes their trust rows.

Usage: bundle.py PROFILE_DIR, after cargo built into that folder. Each bundle lands in PROFILE_DIR/bundles/ID with
its plugin.toml and its library; PROFILE_DIR/bundles/trust.toml promotes the abort-safe ones to run in-process.
"""

import filecmp
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUNDLES = ("owned", "ort", "llama-cpp", "reference")
PROMOTED = ("owned", "ort")
# Private native libraries of a bundle, from the cache that scripts/setup.py fills.
PRIVATE = {"ort": "native/onnxruntime-1.32.0/libonnxruntime.so.1.32.0"}
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
        for source in sources:
            target = folder / source.name
            if not target.exists() or not filecmp.cmp(source, target, shallow=False):
                shutil.copyfile(source, target)
            target.chmod(0o644)
    for name in PROMOTED:
        trust = [built / "synapse", "plugin", "trust", name, "--plugin-dir", bundles]
        subprocess.run([*trust, "--trust-file", bundles / "trust.toml"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
