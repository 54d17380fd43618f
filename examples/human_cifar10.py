"""Make a folder of real pictures under labels that people gave: CIFAR-10 with the human labels of CIFAR-10N.

    python examples/human_cifar10.py --size 5000           # seconds; decoding takes 15 the first time

writes into the current folder

- ``photos/CLASS/NUMBER.png``: training pictures in the folder of the label that a person gave (``worst``: the wrong one
  of three answers where there is one; 40% are wrong),
- ``truth.csv``: ``id,label``, the path below ``photos`` and the true class. No command reads it but the simulated
  reviewer,
- ``test/CLASS/NUMBER.png``: test pictures under their true classes.

The data is read from the folder that ``SGOIF_DATA`` names, see benchmarks/data.py. CIFAR-10 is by Alex Krizhevsky
(2009), CIFAR-10N by Wei et al. (ICLR 2022, CC BY-NC 4.0, noisylabels.com).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import data, noise
from sgoif.files.tables import write_csv_rows


def write_pictures(images: data.Images, folder: Path) -> list[str]:
    """Write one PNG per picture into the folder of its label; returns the paths below ``folder``."""
    paths = [f"{images.class_names[label]}/{i:05d}.png" for i, label in zip(images.ids, images.labels, strict=True)]
    for name in images.class_names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for path, pixels in zip(paths, images.pixels, strict=True):
        Image.fromarray(pixels).save(folder / path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Write CIFAR-10 pictures into folders by the label a person gave.")
    parser.add_argument("--size", type=int, default=5_000, help="training pictures")
    parser.add_argument("--test", type=int, default=2_000, help="test pictures")
    parser.add_argument("--labels", default="worst", help="of CIFAR-10N: worst, aggre, random1, random2, random3")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder to write into")
    options = parser.parse_args()
    images = data.reported(options.size, seed=1).train
    given = noise.apply(options.labels, images.labels, ids=images.ids)
    paths = write_pictures(images.relabel(given), options.out / "photos")
    truth = [images.class_names[label] for label in images.labels]
    write_csv_rows(options.out / "truth.csv", ("id", "label"), zip(paths, truth, strict=True))
    write_pictures(data.cifar10("test").take(slice(0, options.test)), options.out / "test")
    wrong = int((given != images.labels).sum())
    print(f"{len(paths):,} pictures in photos/, {wrong:,} of them ({wrong / len(paths):.0%}) under a wrong label.")


if __name__ == "__main__":
    main()
