#!/usr/bin/env python3
"""Lays out a local registry: our packages as `cargo package` makes them, and what they depend on.

Usage: registry.py FOLDER [--replace-in DIR]

FOLDER gets the form that cargo calls a local registry: NAME-VERSION.crate files beside an index. A project that
replaces its registry with it (`--replace-in DIR` writes DIR/config.toml, to be used as a folder `.cargo` or as
CARGO_HOME's config) builds against exactly what would be published, without a network. The dependencies are the ones
of Cargo.lock, taken from cargo's own cache, which the build of this repository has filled. A package that only other
platforms need is not in the cache; the index names it, so that cargo can resolve, and a build here never asks for it.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What an author's project and `cargo install cargo-synapse` need, dependencies first.
PACKAGES = (
    "synapse-plugin-api",
    "synapse-plugin-sdk",
    "synapse-core",
    "synapse-wire",
    "synapse-transport",
    "synapse-loader",
    "synapse-conformance",
    "cargo-synapse",
)
# What the book's second tutorial builds a C library with.
FOR_TUTORIALS = ("cc",)
KINDS = (("normal", "dependencies"), ("build", "build-dependencies"), ("dev", "dev-dependencies"))


def cargo(*arguments: str, **options) -> bytes:
    """Runs cargo offline in the repository and gives what it printed."""
    command = [os.environ.get("CARGO", "cargo"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, **options).stdout


def closure(packages: dict) -> list:
    """Every package of the lock file that ours lead to, ours excluded."""
    by_name = {}
    for package in packages:
        by_name.setdefault(package["name"], []).append(package)

    def find(word: str) -> dict:
        name, _, version = word.partition(" ")
        version = version.split(" ")[0]
        return next(p for p in by_name[name] if not version or p["version"] == version)

    todo = [find(name) for name in (*PACKAGES, *FOR_TUTORIALS)]
    seen = {}
    while todo:
        package = todo.pop()
        key = (package["name"], package["version"])
        if key not in seen:
            seen[key] = package
            todo.extend(find(word) for word in package.get("dependencies", ()))
    return [package for package in seen.values() if "source" in package]


def manifest(crate: pathlib.Path) -> dict:
    """The manifest inside a package, as cargo normalised it."""
    with tarfile.open(crate) as archive:
        member = archive.extractfile(f"{crate.name.removesuffix('.crate')}/Cargo.toml")
        return tomllib.loads(member.read().decode())


def dependencies(text: dict) -> list:
    """A manifest's dependencies as an index line has them."""
    rows = []
    for target, table in [(None, text), *text.get("target", {}).items()]:
        for kind, key in KINDS:
            for name, row in table.get(key, {}).items():
                row = {"version": row} if isinstance(row, str) else row
                rows.append({
                    "name": name,
                    "req": row["version"],
                    "features": row.get("features", []),
                    "optional": row.get("optional", False),
                    "default_features": row.get("default-features", True),
                    "target": target,
                    "kind": kind,
                    "registry": None,
                    "package": row.get("package"),
                })
    return rows


def line(name: str, version: str, checksum: str, text: dict, asked: set) -> str:
    """A package's line in the index; without a manifest it has just the features that others ask for."""
    features = text.get("features", {}) if text else {feature: [] for feature in sorted(asked)}
    entry = {
        "name": name,
        "vers": version,
        "deps": dependencies(text),
        "cksum": checksum,
        "features": features,
        "yanked": False,
        "links": text.get("package", {}).get("links"),
    }
    return json.dumps(entry, separators=(",", ":"))


def place(name: str) -> pathlib.Path:
    """Where the index keeps a package's lines."""
    name = name.lower()
    if len(name) < 4:
        return pathlib.Path(str(len(name)), *([name[0]] if len(name) == 3 else []), name)
    return pathlib.Path(name[:2], name[2:4], name)


def cached(name: str, version: str) -> pathlib.Path | None:
    """The package's file in cargo's cache."""
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    return next(home.glob(f"registry/cache/*/{name}-{version}.crate"), None)


def contents(crate: pathlib.Path) -> str:
    """A digest of what is in a package, whichever commit it was made at."""
    found = hashlib.sha256()
    with tarfile.open(crate) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            if not member.name.endswith("/.cargo_vcs_info.json"):
                found.update(f"{member.name}\n".encode())
                found.update(hashlib.sha256(archive.extractfile(member).read()).digest())
    return found.hexdigest()


def package_ours(folder: pathlib.Path) -> list:
    """Packages what is ours into the folder; gives names, versions and checksums."""
    versions = {p["name"]: p["version"] for p in json.loads(cargo("metadata", "--no-deps", "--format-version", "1"))["packages"]}
    ours = []
    with tempfile.TemporaryDirectory() as target:
        chosen = [word for name in PACKAGES for word in ("--package", name)]
        # Each package is compiled where it is used: by the project that replaces its registry with this one.
        cargo("package", "--offline", "--locked", "--quiet", "--no-verify", "--exclude-lockfile", "--allow-dirty", "--target-dir", target, *chosen)
        for name in PACKAGES:
            made = pathlib.Path(target, "package", f"{name}-{versions[name]}.crate")
            shutil.copyfile(made, folder / made.name)
            ours.append((name, versions[name], hashlib.sha256(made.read_bytes()).hexdigest()))
    return ours


def main() -> None:
    """Writes the registry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--replace-in", type=pathlib.Path, metavar="DIR")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "index").mkdir(parents=True)
    found = package_ours(folder)
    for package in closure(tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]):
        file = cached(package["name"], package["version"])
        if file:
            shutil.copyfile(file, folder / file.name)
        found.append((package["name"], package["version"], package["checksum"]))
    texts = {}
    for name, version, _ in found:
        crate = folder / f"{name}-{version}.crate"
        texts[name, version] = manifest(crate) if crate.exists() else {}
    asked: dict = {}
    for text in texts.values():
        rows = dependencies(text)
        names = {row["name"]: row["package"] or row["name"] for row in rows}
        for row in rows:
            asked.setdefault(names[row["name"]], set()).update(row["features"])
        # A feature may switch on one of a dependency: `tokio/net = ["windows-sys/Win32_System_Pipes"]`.
        for word in (word for words in text.get("features", {}).values() for word in words if "/" in word):
            name, _, feature = word.partition("/")
            asked.setdefault(names.get(name.rstrip("?"), name), set()).add(feature)
    lines: dict = {}
    for name, version, checksum in found:
        row = line(name, version, checksum, texts[name, version], asked.get(name, set()))
        lines.setdefault(name, []).append(row)
    for name, rows in lines.items():
        path = folder / "index" / place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(rows) + "\n")
    # Cargo takes a package of a known version for known: whoever keeps builds compares this, and builds anew.
    ours = [f"{contents(folder / f'{name}-{version}.crate')}  {name}" for name, version, _ in found[: len(PACKAGES)]]
    (folder / "contents.txt").write_text("\n".join(ours) + "\n")
    if arguments.replace_in:
        arguments.replace_in.mkdir(parents=True, exist_ok=True)
        text = (
            '[source.crates-io]\nreplace-with = "local"\n\n'
            f"[source.local]\nlocal-registry = {json.dumps(str(folder))}\n"
        )
        (arguments.replace_in / "config.toml").write_text(text)
    named = sum(not text for text in texts.values())
    print(f"{len(found)} packages, {named} of them named only, for other platforms")


if __name__ == "__main__":
    main()
