#!/usr/bin/env python3
"""Checks before a release what takes too long for every change, or needs tools that CI does not install.

Usage: release.py [--baseline REVISION]

1. Packages every crate that an author needs into a local registry and installs cargo-synapse from there, so that the
   packages are proven to be whole: nothing of this repository is in reach.
2. With that tool, and against those packages, makes a project of each kind, packs it and runs the conformance kit.
3. Compares the Rust API with the last release by cargo-semver-checks: plugin-api with its frozen source in tests/abi,
   plugin-sdk with REVISION (a tag or a commit). Says so where the tool is not installed: cargo install cargo-semver-checks.
4. Runs tests/abi: golden layout, public items, the frozen source byte for byte, plugins of other versions and compilers.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ("embed", "rerank", "generate")


def run(*command, **options) -> None:
    """Runs a command, shown; ends the release check when it fails."""
    print("==", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, **options)


def install(folder: pathlib.Path) -> dict:
    """Installs the tool from packages only; gives the environment that it lives in."""
    home = folder / "cargo-home"
    run(sys.executable, ROOT / "scripts/registry.py", folder / "registry", "--replace-in", home)
    environment = os.environ | {
        "CARGO_HOME": str(home),
        "CARGO_TARGET_DIR": str(folder / "target"),
        "CARGO_NET_OFFLINE": "true",
        "PATH": f"{folder / 'tool/bin'}{os.pathsep}{os.environ['PATH']}",
    }
    run("cargo", "install", "cargo-synapse", "--root", folder / "tool", cwd=folder, env=environment)
    return environment


def projects(folder: pathlib.Path, environment: dict) -> None:
    """Makes a project of each kind and lets the kit judge its bundle."""
    for kind in KINDS:
        run("cargo", "synapse", "new", f"a-{kind}", "--kind", kind, cwd=folder, env=environment)
        run("cargo", "synapse", "check", "--level", "fault", cwd=folder / f"a-{kind}", env=environment)


def semver(baseline: str | None) -> None:
    """Compares the public Rust API with the last release's."""
    if shutil.which("cargo-semver-checks") is None:
        print("SKIPPED semver: cargo-semver-checks is not installed: cargo install cargo-semver-checks")
        return
    frozen = ROOT / "tests/abi/fixtures/plugin-api-1.0.0"
    run("cargo", "semver-checks", "-p", "synapse-plugin-api", "--baseline-root", frozen, cwd=ROOT)
    if baseline is None:
        print("SKIPPED semver of plugin-sdk: there is no release to compare with; name one with --baseline REVISION")
        return
    run("cargo", "semver-checks", "-p", "synapse-plugin-sdk", "--baseline-rev", baseline, cwd=ROOT)


def main() -> None:
    """Runs the steps in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", metavar="REVISION", help="the last release of plugin-sdk")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synapse-release-") as name:
        folder = pathlib.Path(name)
        projects(folder, install(folder))
    semver(arguments.baseline)
    run("cargo", "test", "--locked", "--profile", "ci", "-p", "synapse-abi", cwd=ROOT)
    print("RELEASE CHECKS PASSED")


if __name__ == "__main__":
    main()
