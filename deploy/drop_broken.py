"""Forget distributions that an interrupted installation left incomplete, so that pip installs them again.

pip takes a distribution for installed once its metadata folder exists, even where the files beside it are missing or
cut short. This compares each installed file with the size recorded for it and removes the metadata folder of every
distribution that fails.
"""

from __future__ import annotations

import shutil
from importlib.metadata import Distribution, distributions
from pathlib import Path


def is_complete(distribution: Distribution) -> bool:
    if not distribution.files or distribution.read_text("METADATA") is None:
        return False
    for file in distribution.files:
        if file.suffix == ".pyc":  # Python writes these anew as it likes
            continue
        path = Path(str(file.locate()))
        if not path.is_file() or (file.size is not None and path.stat().st_size != file.size):
            return False
    return True


def main() -> None:
    for distribution in list(distributions()):
        folder = getattr(distribution, "_path", None)  # the only way to a distribution's folder
        if isinstance(folder, Path) and not is_complete(distribution):
            print(f"incomplete, to be installed again: {folder.name}")
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
